{{/* What is watched and written in each namespace. Secrets are not here: they are named one by one. */}}
{{- define "kinference.watchRules" -}}
- apiGroups: [kinference.buoyant.io]
  resources:
    - inferencepolicies
    - inferencepools
    - inferenceworkersets
    - inferenceproviders
    - inferencetenants
    - inferenceclassifiers
  verbs: [list, watch]
- apiGroups: [kinference.buoyant.io]
  resources:
    - inferencepolicies/status
    - inferencepools/status
    - inferenceworkersets/status
    - inferenceproviders/status
    - inferencetenants/status
    - inferenceclassifiers/status
  verbs: [patch]
- apiGroups: [""]
  resources: [pods]
  verbs: [list, watch]
- apiGroups: [""]
  resources: [events]
  verbs: [create]
{{- end -}}
