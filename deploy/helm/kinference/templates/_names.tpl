{{- define "kinference.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "kinference.selector" -}}
app.kubernetes.io/name: {{ default .Chart.Name .Values.nameOverride }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "kinference.labels" -}}
{{ include "kinference.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "kinference.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "kinference.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- define "kinference.image" -}}
{{- with .Values.image -}}
{{- if .digest -}}
{{- printf "%s@%s" .repository .digest -}}
{{- else -}}
{{- printf "%s:%s" .repository (default $.Chart.AppVersion .tag) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Name of the ConfigMap with the documents; only with the source Files. */}}
{{- define "kinference.documents" -}}
{{- default (printf "%s-resources" (include "kinference.fullname" .)) .Values.resources.existingConfigMap -}}
{{- end -}}

{{/* Where the kubelet asks for the health of the pod. */}}
{{- define "kinference.probe" -}}
port: admin
{{- if .Values.admin.loopbackOnly }}
host: 127.0.0.1
{{- end }}
{{- end -}}

{{/* The server's own file. */}}
{{- define "kinference.serverFile" -}}
{{- $file := deepCopy .Values.server -}}
{{- $listeners := list -}}
{{- $host := eq .Values.address "::" | ternary "[::]" .Values.address -}}
{{- range .Values.listeners -}}
{{- $listener := dict "address" (printf "%s:%d" $host (int .port)) -}}
{{- if .tlsSecret -}}
{{- $tls := dict "certFile" (printf "/etc/kinference/tls/%s/tls.crt" .name) "keyFile" (printf "/etc/kinference/tls/%s/tls.key" .name) -}}
{{- if .clientCaSecret -}}
{{- $_ := set $tls "clientCaFile" (printf "/etc/kinference/client-ca/%s/ca.crt" .name) -}}
{{- end -}}
{{- $_ := set $listener "tls" $tls -}}
{{- else if .clientCaSecret -}}
{{- fail (printf "listener %s: clientCaSecret needs tlsSecret" .name) -}}
{{- end -}}
{{- if .pools -}}
{{- $_ := set $listener "pools" .pools -}}
{{- end -}}
{{- $listeners = append $listeners $listener -}}
{{- end -}}
{{- $_ := set $file "listeners" $listeners -}}
{{- if .Values.admin.loopbackOnly -}}
{{- if not .Values.hostNetwork -}}
{{- fail "admin.loopbackOnly needs hostNetwork: the kubelet asks this port for the health of the pod" -}}
{{- end -}}
{{- $host = "127.0.0.1" -}}
{{- end -}}
{{- $_ := set $file "admin" (dict "address" (printf "%s:%d" $host (int .Values.admin.port))) -}}
{{- if .Values.balancers.enabled -}}
{{- $peers := printf "%s-peers.%s.svc:%d" (include "kinference.fullname" .) .Release.Namespace (int .Values.balancers.port) -}}
{{- $heard := printf "%s:%d" (eq .Values.address "::" | ternary "[::]" .Values.address) (int .Values.balancers.port) -}}
{{- $_ := set $file "balancers" (dict "address" $heard "peers" (list $peers) "secret" (dict "fromEnv" "KINFERENCE_BALANCERS")) -}}
{{- end -}}
{{- $_ := set $file "drainTimeout" (printf "%ds" (int .Values.drainTimeoutSeconds)) -}}
{{- if eq .Values.resources.source "Kubernetes" -}}
{{- $kubernetes := dict "enabled" true "credentials" .Values.resources.credentials -}}
{{- if .Values.resources.namespaces -}}
{{- $_ := set $kubernetes "namespaces" .Values.resources.namespaces -}}
{{- end -}}
{{- $_ := set $file "kubernetes" $kubernetes -}}
{{- else -}}
{{- $_ := set $file "resources" (list "/etc/kinference/resources") -}}
{{- end -}}
{{ toYaml $file }}
{{- end -}}
