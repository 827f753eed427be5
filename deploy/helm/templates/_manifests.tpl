{{/* The documents of a file, in the release's namespace: (list $ "limiter.yaml"). */}}
{{- define "rl.documents" }}
{{- $root := first . }}
{{- $documents := list }}
{{- range splitList "\n---\n" ($root.Files.Get (printf "files/%s" (last .))) }}
{{- $document := fromYaml . }}
{{- $_ := set $document.metadata "namespace" $root.Release.Namespace }}
{{- $documents = append $documents $document }}
{{- end }}
{{- toYaml $documents }}
{{- end }}

{{/* The labels that base/kustomization.yaml adds. */}}
{{- define "rl.labels" }}
app.kubernetes.io/part-of: rl
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
{{- end }}

{{/* The ports of the store, as a NetworkPolicy has them. */}}
{{- define "rl.storePorts" }}
{{- range .Values.networkPolicy.storePorts }}
- port: {{ . }}
{{- end }}
{{- end }}

{{- define "rl.image" }}
{{- with .Values.image }}
{{- if .digest }}{{ .repository }}@{{ .digest }}{{ else }}{{ .repository }}:{{ .tag | default $.Chart.AppVersion }}{{ end }}
{{- end }}
{{- end }}

{{/* Sets the image of a pod and of its only container: (list $ POD CONTAINER). */}}
{{- define "rl.setImage" }}
{{- $root := index . 0 }}
{{- $_ := set (index . 2) "image" (include "rl.image" $root) }}
{{- with $root.Values.image.pullPolicy }}{{ $_ := set (index $ 2) "imagePullPolicy" . }}{{ end }}
{{- with $root.Values.image.pullSecrets }}
{{- $secrets := list }}
{{- range . }}{{ $secrets = append $secrets (dict "name" .) }}{{ end }}
{{- $_ := set (index $ 1) "imagePullSecrets" $secrets }}
{{- end }}
{{- end }}

{{/* The file of `rlctl controller --filter`: the component's, with the values on top. */}}
{{- define "rl.filter" }}
{{- $file := .Files.Get "files/controller-filter.yaml" | replace "limiter.ratelimit.svc" (printf "limiter.%s.svc" .Release.Namespace) }}
{{- with .Values.controller.filter.settings }}
{{- $file = toYaml (mergeOverwrite (fromYaml $file) (deepCopy .)) }}
{{- end }}
{{- $file }}
{{- end }}
