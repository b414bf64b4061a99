{{/* The pod, the same for a Deployment and a DaemonSet. */}}
{{- define "kinference.pod" -}}
metadata:
  labels:
    {{- include "kinference.labels" . | nindent 4 }}
    {{- with .Values.podLabels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  annotations:
    # A changed server file needs a new process; changed documents and certificates do not.
    kinference.buoyant.io/server-file: {{ include "kinference.serverFile" . | sha256sum }}
    {{- with .Values.podAnnotations }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  serviceAccountName: {{ include "kinference.serviceAccount" . }}
  automountServiceAccountToken: {{ eq .Values.resources.source "Kubernetes" }}
  enableServiceLinks: false
  {{- with .Values.imagePullSecrets }}
  imagePullSecrets:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- if .Values.hostNetwork }}
  hostNetwork: true
  dnsPolicy: ClusterFirstWithHostNet
  {{- end }}
  securityContext:
    runAsNonRoot: true
    runAsUser: {{ .Values.runAsUser }}
    runAsGroup: {{ .Values.runAsUser }}
    fsGroup: {{ .Values.runAsUser }}
    seccompProfile:
      type: {{ .Values.seccompProfile.type }}
      {{- if eq .Values.seccompProfile.type "Localhost" }}
      localhostProfile: {{ required "seccompProfile.localhostProfile is needed with type Localhost" .Values.seccompProfile.localhostProfile }}
      {{- end }}
    {{- if .Values.sysctls }}
    {{- if .Values.hostNetwork }}
    {{- fail "sysctls belong to the node with hostNetwork: set them there" }}
    {{- end }}
    sysctls:
      {{- toYaml .Values.sysctls | nindent 6 }}
    {{- end }}
  # The wait before it stops listening, the requests it then has, and the time of the process to end.
  terminationGracePeriodSeconds: {{ add .Values.preStopSeconds .Values.drainTimeoutSeconds 15 }}
  {{- with .Values.priorityClassName }}
  priorityClassName: {{ . }}
  {{- end }}
  {{- with .Values.runtimeClassName }}
  runtimeClassName: {{ . }}
  {{- end }}
  {{- with .Values.nodeSelector }}
  nodeSelector:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.tolerations }}
  tolerations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.affinity }}
  affinity:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- if .Values.topologySpreadConstraints }}
  topologySpreadConstraints:
    {{- toYaml .Values.topologySpreadConstraints | nindent 4 }}
  {{- else if eq .Values.kind "Deployment" }}
  topologySpreadConstraints:
    - topologyKey: kubernetes.io/hostname
      maxSkew: 1
      whenUnsatisfiable: ScheduleAnyway
      labelSelector:
        matchLabels:
          {{- include "kinference.selector" . | nindent 10 }}
  {{- end }}
  containers:
    - name: kinference
      image: {{ include "kinference.image" . }}
      imagePullPolicy: {{ .Values.image.pullPolicy }}
      args:
        - serve
        - --config
        - /etc/kinference/kinference.yaml
        - --driver
        - {{ .Values.driver }}
      env:
        - name: POD_NAME
          valueFrom: { fieldRef: { fieldPath: metadata.name } }
        - name: POD_NAMESPACE
          valueFrom: { fieldRef: { fieldPath: metadata.namespace } }
        {{- if .Values.balancers.enabled }}
        - name: KINFERENCE_BALANCERS
          valueFrom:
            secretKeyRef:
              name: {{ required "balancers.secret.name is needed with balancers.enabled" .Values.balancers.secret.name }}
              key: {{ .Values.balancers.secret.key }}
        {{- end }}
        {{- with .Values.env }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      {{- with .Values.envFrom }}
      envFrom:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      ports:
        {{- range .Values.listeners }}
        - name: {{ .name }}
          containerPort: {{ .port }}
        {{- end }}
        - name: admin
          containerPort: {{ .Values.admin.port }}
        {{- if .Values.balancers.enabled }}
        - name: balancers
          containerPort: {{ .Values.balancers.port }}
          protocol: UDP
        {{- end }}
      # A process that answers is alive, whatever its engines do: a restart would only end its streams.
      livenessProbe:
        httpGet:
          path: /healthz
          {{- include "kinference.probe" . | nindent 10 }}
        periodSeconds: 10
        timeoutSeconds: 5
        failureThreshold: 6
      # Ready once a configuration is in force and an engine is ready; not while it drains.
      readinessProbe:
        httpGet:
          path: /readyz
          {{- include "kinference.probe" . | nindent 10 }}
        periodSeconds: 2
        timeoutSeconds: 2
        failureThreshold: 3
      lifecycle:
        preStop:
          sleep:
            seconds: {{ .Values.preStopSeconds }}
      {{- with .Values.podResources }}
      resources:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      securityContext:
        allowPrivilegeEscalation: false
        readOnlyRootFilesystem: true
        capabilities:
          drop: [ALL]
      volumeMounts:
        - name: config
          mountPath: /etc/kinference/kinference.yaml
          subPath: kinference.yaml
          readOnly: true
        {{- if eq .Values.resources.source "Files" }}
        - name: resources
          mountPath: /etc/kinference/resources
          readOnly: true
        {{- end }}
        {{- range .Values.listeners }}
        {{- if .tlsSecret }}
        - name: tls-{{ .name }}
          mountPath: /etc/kinference/tls/{{ .name }}
          readOnly: true
        {{- end }}
        {{- if .clientCaSecret }}
        - name: client-ca-{{ .name }}
          mountPath: /etc/kinference/client-ca/{{ .name }}
          readOnly: true
        {{- end }}
        {{- end }}
        {{- with .Values.volumeMounts }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
  volumes:
    - name: config
      configMap:
        name: {{ include "kinference.fullname" . }}
    {{- if eq .Values.resources.source "Files" }}
    - name: resources
      configMap:
        name: {{ include "kinference.documents" . }}
    {{- end }}
    {{- range .Values.listeners }}
    {{- if .tlsSecret }}
    - name: tls-{{ .name }}
      secret:
        secretName: {{ .tlsSecret }}
        defaultMode: 0440
    {{- end }}
    {{- if .clientCaSecret }}
    - name: client-ca-{{ .name }}
      secret:
        secretName: {{ .clientCaSecret }}
        items: [{ key: ca.crt, path: ca.crt }]
    {{- end }}
    {{- end }}
    {{- with .Values.volumes }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
{{- end -}}
