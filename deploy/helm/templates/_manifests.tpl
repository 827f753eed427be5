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

{{/* Ports, as a NetworkPolicy has them. */}}
{{- define "rl.ports" }}
{{- range . }}
- port: {{ . }}
{{- end }}
{{- end }}

{{/* The manifest's flags that neither `limiter.args` nor `limiter.env` sets. A limiter ends if it has a flag twice, and a
     variable would count for nothing beside a flag: (list $ ARGS). */}}
{{- define "rl.ownArgs" }}
{{- $values := (first .).Values.limiter }}
{{- $set := list }}
{{- range $values.args }}{{ $set = append $set (first (splitList "=" .)) }}{{ end }}
{{- range $values.env }}
{{- if hasPrefix "RL_" .name }}
{{- $set = append $set (printf "--%s" (trimPrefix "RL_" .name | lower | replace "_" "-")) }}
{{- end }}
{{- end }}
{{- $own := list }}
{{- range last . }}{{ if not (has (first (splitList "=" .)) $set) }}{{ $own = append $own . }}{{ end }}{{ end }}
{{- toYaml $own }}
{{- end }}

{{/* Seconds until a pod is killed: longer than the drain that `limiter.args` or `limiter.env` sets. */}}
{{- define "rl.grace" }}
{{- $said := .Values.limiter.args | join " " }}
{{- range .Values.limiter.env }}{{ if eq .name "RL_DRAIN" }}{{ $said = printf "--drain=%s" .value }}{{ end }}{{ end }}
{{- $drain := regexFind "--drain[= ][0-9]+[smh]+" $said | regexFind "[0-9]+[smh]+" }}
{{- $seconds := regexFind "[0-9]+" $drain | default "0" | int }}
{{- $unit := regexFind "[smh]+" $drain }}
{{- if eq $unit "m" }}{{ $seconds = mul $seconds 60 }}{{ end }}
{{- if eq $unit "h" }}{{ $seconds = mul $seconds 3600 }}{{ end }}
{{- if eq $unit "ms" }}{{ $seconds = div $seconds 1000 }}{{ end }}
{{- max 20 (add $seconds 10) }}
{{- end }}

{{/* Refuses values of which one would be dropped in silence, or would keep another from working. */}}
{{- define "rl.contradictions" }}
{{- with .Values }}
{{- if and .tls.clientCA (not .tls.secret) }}
{{- fail "tls.clientCA: without tls.secret the data port has no TLS, and would ask nobody for a certificate" }}
{{- end }}
{{- if and .limits.files .limits.configMap }}{{ fail "limits.files: limits.configMap has the files then" }}{{ end }}
{{- if and (or .limits.files .limits.configMap) (not .limits.enabled) }}
{{- fail "limits.files, limits.configMap: nothing applies them without limits.enabled" }}
{{- end }}
{{- with .controller.filter }}
{{- if and (or .settings .configMap) (not .enabled) }}
{{- fail "controller.filter.settings, controller.filter.configMap: nothing reads them without controller.filter.enabled" }}
{{- end }}
{{- if and .settings .configMap }}
{{- fail "controller.filter.settings: controller.filter.configMap has the file then" }}
{{- end }}
{{- end }}
{{- if and .controller.filter.enabled (not .controller.enabled) }}
{{- fail "controller.filter.enabled: nothing loads the filter without controller.enabled" }}
{{- end }}
{{- if gt (int .limiter.autoscaling.min) (int .limiter.autoscaling.max) }}
{{- fail "limiter.autoscaling: min is above max" }}
{{- end }}
{{- if .networkPolicy.enabled }}
{{- if and .valkey.enabled (not (has 6379.0 .networkPolicy.storePorts)) (not (has 6379 .networkPolicy.storePorts)) }}
{{- fail "networkPolicy.storePorts: the Valkey of the chart is at 6379" }}
{{- end }}
{{- $said := list }}
{{- range .limiter.args }}
{{- if regexMatch "^--(xds-server|compare-with)" . }}{{ $said = append $said . }}{{ end }}
{{- end }}
{{- range .limiter.env }}
{{- if regexMatch "^(RL_XDS_SERVER|RL_COMPARE_WITH|OTEL_EXPORTER_OTLP_(TRACES_)?ENDPOINT)$" .name }}
{{- /* A collector in the same pod needs no permission. */}}
{{- if not (regexMatch "//(localhost|127\\.|\\[::1\\])" (.value | default "")) }}{{ $said = append $said .name }}{{ end }}
{{- end }}
{{- end }}
{{- if and $said (not .networkPolicy.egress) }}
{{- fail (printf "networkPolicy.egress: it must permit the connections of %s" (join ", " $said)) }}
{{- end }}
{{- end }}
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
{{- include "rl.setPullSecrets" . }}
{{- end }}

{{/* (list $ POD) */}}
{{- define "rl.setPullSecrets" }}
{{- $secrets := list }}
{{- range (first .).Values.image.pullSecrets }}{{ $secrets = append $secrets (dict "name" .) }}{{ end }}
{{- if $secrets }}{{ $_ := set (index . 1) "imagePullSecrets" $secrets }}{{ end }}
{{- end }}

{{/* The file of `rlctl controller --filter`: the component's, with the values on top. */}}
{{- define "rl.filter" }}
{{- $file := .Files.Get "files/controller-filter.yaml" | replace "limiter.ratelimit.svc" (printf "limiter.%s.svc" .Release.Namespace) }}
{{- with .Values.controller.filter.settings }}
{{- $file = toYaml (mergeOverwrite (fromYaml $file) (deepCopy .)) }}
{{- end }}
{{- $file }}
{{- end }}
