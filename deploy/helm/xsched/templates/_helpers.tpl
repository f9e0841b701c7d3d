{{- define "xsched.labels" -}}
app.kubernetes.io/name: xsched
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end -}}

{{- define "xsched.selector" -}}
app.kubernetes.io/name: xsched
app.kubernetes.io/component: node
{{- end -}}

{{- define "xsched.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end -}}

{{- define "xsched.imageSettings" -}}
image: {{ include "xsched.image" . | quote }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
{{- end -}}

{{- define "xsched.scheduling" -}}
{{ include "xsched.anywhere" . }}
{{- with .Values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- if include "xsched.byLabel" . }}
affinity:
  nodeAffinity:
    requiredDuringSchedulingIgnoredDuringExecution:
      nodeSelectorTerms:
        {{- range .Values.gpuNodeLabels }}
        - matchExpressions: [{key: {{ . }}, operator: Exists}]
        {{- end }}
{{- end }}
{{- end -}}

{{/* Not empty if the labels of GPU nodes select the nodes. */}}
{{- define "xsched.byLabel" -}}
{{- if and .Values.gpuNodeLabels (not .Values.virtual.enabled) (not .Values.nodeSelector) (not .Values.affinity) }}yes{{ end -}}
{{- end -}}

{{/* For pods that need no GPU: the last node with one may be gone. */}}
{{- define "xsched.anywhere" -}}
priorityClassName: {{ .Values.priorityClassName }}
{{- with .Values.image.pullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* Root without capabilities: files of the host belong to root. */}}
{{- define "xsched.restricted" -}}
runAsUser: 0
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{/* What the NVIDIA runtime needs to add the device nodes, and the administrator's own variables. */}}
{{- define "xsched.gpuEnv" -}}
{{- if and (not .Values.virtual.enabled) (eq .Values.daemon.deviceAccess "runtimeClass") -}}
- {name: NVIDIA_VISIBLE_DEVICES, value: all}
- {name: NVIDIA_DRIVER_CAPABILITIES, value: utility}
{{ end -}}
{{- with .Values.daemon.extraEnv -}}
{{ toYaml . }}
{{- end -}}
{{- end -}}

{{/* The token, mounted only where it is needed. */}}
{{- define "xsched.token" -}}
- name: token
  projected:
    defaultMode: 0400
    sources:
      - serviceAccountToken: {path: token, expirationSeconds: 3607}
      - configMap: {name: kube-root-ca.crt, items: [{key: ca.crt, path: ca.crt}]}
      - downwardAPI: {items: [{path: namespace, fieldRef: {fieldPath: metadata.namespace}}]}
{{- end -}}

{{- define "xsched.tokenMount" -}}
- {name: token, mountPath: /var/run/secrets/kubernetes.io/serviceaccount, readOnly: true}
{{- end -}}

{{/* Annotations of an object that exists only while the chart is uninstalled; the argument is its order. */}}
{{- define "xsched.hook" -}}
helm.sh/hook: pre-delete
helm.sh/hook-weight: {{ . | quote }}
helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded,hook-failed
{{- end -}}
