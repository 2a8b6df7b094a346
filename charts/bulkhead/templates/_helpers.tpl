{{/* What cannot work is refused before anything is installed. Called once, by validate.yaml. */}}
{{- define "bulkhead.validate" -}}
{{- if ne .Release.Namespace "bulkhead-system" -}}
{{- fail (printf "Bulkhead runs in the namespace bulkhead-system, which its admission policies and its programs name, and not in %q: add `--namespace bulkhead-system --create-namespace`" .Release.Namespace) -}}
{{- end -}}
{{- if .Values.s3.enabled -}}
{{- if not .Values.s3.endpointUrl -}}
{{- fail "s3.enabled needs s3.endpointUrl: where S3 is, such as https://s3.example.com" -}}
{{- end -}}
{{- range $key := list "AWS_ACCESS_KEY_ID" "AWS_SECRET_ACCESS_KEY" "AWS_SESSION_TOKEN" -}}
{{- if hasKey $.Values.s3.settings $key -}}
{{- fail (printf "s3.settings.%s would stand in a ConfigMap, for all who may read kube-system: put the keys into the Secret s3-secret of kube-system, under access_key_id, secret_access_key and session_token" $key) -}}
{{- end -}}
{{- end -}}
{{- if has .Values.mountpointPod.namespace (list .Release.Namespace "bulkhead-node-agent" "kube-system") -}}
{{- fail (printf "mountpointPod.namespace must be a namespace of Mountpoint Pods alone, not %s" .Values.mountpointPod.namespace) -}}
{{- end -}}
{{- end -}}
{{- if and .Values.decommission (not .Values.rbac.create) (not .Values.controller.enabled) -}}
{{- fail "decommission needs the controller's ServiceAccount and image: set controller.enabled" -}}
{{- end -}}
{{- end }}

{{/* Labels of an object: (dict "root" $ "component" "controller"). Those by which pods are selected are config's. */}}
{{- define "bulkhead.labels" -}}
{{ include "bulkhead.selectorLabels" . }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
{{- end }}

{{- define "bulkhead.selectorLabels" -}}
app.kubernetes.io/name: bulkhead
{{- with .component }}
app.kubernetes.io/component: {{ . }}
{{- end }}
{{- end }}

{{/* Labels of a pod: (dict "component" … "more" podLabels "fixed" (dict …)). Those that select it win. */}}
{{- define "bulkhead.podLabels" -}}
{{- $fixed := include "bulkhead.selectorLabels" . | fromYaml -}}
{{- toYaml (merge (dict) $fixed (default (dict) .fixed) .more) }}
{{- end }}

{{/* Reference of an image: (dict "root" $ "image" .Values.controller.image). */}}
{{- define "bulkhead.image" -}}
{{- $common := .root.Values.image -}}
{{- $registry := default $common.registry .image.registry -}}
{{- $name := .image.repository -}}
{{- if $registry -}}{{- $name = printf "%s/%s" (trimSuffix "/" $registry) $name -}}{{- end -}}
{{- if .image.digest -}}
{{- printf "%s@%s" $name .image.digest -}}
{{- else -}}
{{- printf "%s:%s" $name (coalesce .image.tag $common.tag .root.Chart.AppVersion) -}}
{{- end -}}
{{- end }}

{{- define "bulkhead.pullPolicy" -}}
{{- default .root.Values.image.pullPolicy .image.pullPolicy -}}
{{- end }}

{{/* Where and before whom a pod runs: (dict "root" $ "pod" .Values.controller). */}}
{{- define "bulkhead.scheduling" -}}
{{- with .root.Values.image.pullSecrets }}
imagePullSecrets:
{{- toYaml . | nindent 0 }}
{{- end }}
{{- with .pod.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .pod.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .pod.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .pod.tolerations }}
tolerations:
{{- toYaml . | nindent 0 }}
{{- end }}
{{- with .pod.topologySpreadConstraints }}
topologySpreadConstraints:
{{- toYaml . | nindent 0 }}
{{- end }}
{{- end }}

{{/* Environment that all programs have, where values say something, and a component's own: (dict "root" $ "pod" …). */}}
{{- define "bulkhead.environment" -}}
{{- with .root.Values.log.level }}
- name: BULKHEAD_LOG
  value: {{ . | quote }}
{{- end }}
{{- if ne .root.Values.log.format "text" }}
- name: BULKHEAD_LOG_FORMAT
  value: {{ .root.Values.log.format | quote }}
{{- end }}
{{- with .root.Values.tracing.otlpEndpoint }}
- name: BULKHEAD_OTLP_ENDPOINT
  value: {{ . | quote }}
{{- end }}
{{- with .pod.extraEnv }}
{{- toYaml . | nindent 0 }}
{{- end }}
{{- end }}

{{/* The security context of a container that needs no right on its node. */}}
{{- define "bulkhead.restricted" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}

{{- define "bulkhead.nobody" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{- define "bulkhead.livenessProbe" -}}
httpGet: {path: /healthz, port: http}
periodSeconds: 10
timeoutSeconds: 2
failureThreshold: 6
{{- end }}

{{- define "bulkhead.readinessProbe" -}}
httpGet: {path: /readyz, port: http}
periodSeconds: 5
timeoutSeconds: 2
{{- end }}

{{/*
Files of the chart as they are: (dict "root" $ "glob" "files/policies/*.yaml"). Objects that name the namespace of the node
agents are left out with them, and the namespace of Mountpoint Pods is put in.
*/}}
{{- define "bulkhead.files" -}}
{{- $root := .root -}}
{{- range $path, $_ := $root.Files.Glob .glob }}
{{- range $object := splitList "\n---\n" ($root.Files.Get $path) }}
{{- if or $root.Values.nodeAgent.enabled (not (contains "namespace: bulkhead-node-agent" $object)) }}
---
{{ $object | trim | replace "namespace: mount-s3" (printf "namespace: %s" $root.Values.mountpointPod.namespace) }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{/* How the controller makes Mountpoint Pods, as its environment. */}}
{{- define "bulkhead.mountpointPods" -}}
{{- $s3 := .Values.s3 -}}
{{- with $s3.mountpointPods }}
- name: MOUNTPOINT_NAMESPACE
  value: {{ $.Values.mountpointPod.namespace }}
- name: MOUNTPOINT_PRIORITY_CLASS_NAME
  value: {{ .priorityClassName }}
- name: MOUNTPOINT_IMAGE
  value: {{ include "bulkhead.image" (dict "root" $ "image" .image) | quote }}
- name: MOUNTPOINT_IMAGE_PULL_POLICY
  value: {{ include "bulkhead.pullPolicy" (dict "root" $ "image" .image) }}
{{- with .version }}
- name: MOUNTPOINT_VERSION
  value: {{ . | quote }}
{{- end }}
{{- with .labels }}
- name: MOUNTPOINT_POD_LABELS
  value: {{ toJson . | quote }}
{{- end }}
{{- with .resources }}
- name: MOUNTPOINT_RESOURCES
  value: {{ toJson . | quote }}
{{- end }}
{{- /* What the template itself says of them wins, unless it is empty. */}}
{{- $template := deepCopy .template }}
{{- with $.Values.image.pullSecrets }}
{{- $template = merge $template (dict "spec" (dict "imagePullSecrets" .)) }}
{{- end }}
{{- with $template }}
- name: MOUNTPOINT_POD_TEMPLATE
  value: {{ toJson . | quote }}
{{- end }}
{{- with .nodeBinding }}
- name: MOUNTPOINT_NODE_BINDING
  value: {{ . | quote }}
{{- end }}
{{- if .platformChoosesUser }}
- name: MOUNTPOINT_PLATFORM_CHOOSES_USER
  value: "true"
{{- end }}
{{- with .caConfigMap }}
- name: TLS_CA_CERT_CONFIGMAP
  value: {{ . | quote }}
{{- end }}
{{- with .caInitImage }}
- name: TLS_INIT_IMAGE
  value: {{ . | quote }}
{{- end }}
{{- end }}
{{- end }}

{{/* The driver's own keys, as environment of its programs. */}}
{{- define "bulkhead.s3Keys" -}}
- name: AWS_ACCESS_KEY_ID
  valueFrom: {secretKeyRef: {name: s3-secret, key: access_key_id, optional: true}}
- name: AWS_SECRET_ACCESS_KEY
  valueFrom: {secretKeyRef: {name: s3-secret, key: secret_access_key, optional: true}}
- name: AWS_SESSION_TOKEN
  valueFrom: {secretKeyRef: {name: s3-secret, key: session_token, optional: true}}
{{- end }}

{{/* What the S3 driver's programs are told; a change restarts their pods. */}}
{{- define "bulkhead.s3Settings" -}}
AWS_ENDPOINT_URL: {{ .Values.s3.endpointUrl | quote }}
AWS_REGION: {{ .Values.s3.region | quote }}
{{- range $name, $value := .Values.s3.settings }}
{{ $name }}: {{ $value | quote }}
{{- end }}
{{- end }}

{{/* Where heartbeats are sent from or arrive, as environment: (dict "root" $ "address" "status.podIP"). */}}
{{- define "bulkhead.heartbeatEnvironment" -}}
{{- with .root.Values.heartbeats }}
{{- if .enabled }}
- name: BULKHEAD_HEARTBEAT_ADDRESS
  valueFrom: {fieldRef: {fieldPath: {{ $.address }}}}
{{- if ne (int .port) 9811 }}
- name: BULKHEAD_HEARTBEAT_PORT
  value: {{ .port | quote }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{- define "bulkhead.heartbeatPort" -}}
{{- with .Values.heartbeats }}
{{- if .enabled }}
- name: heartbeat
  containerPort: {{ .port }}
  protocol: UDP
{{- end }}
{{- end }}
{{- end }}
