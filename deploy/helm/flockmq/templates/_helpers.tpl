{{- define "flockmq.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- ternary .Release.Name (printf "%s-%s" .Release.Name $name) (contains $name .Release.Name) | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- /* Labels that never change, for selectors: of the nodes, and of Redis. */ -}}
{{- define "flockmq.selector" -}}
app.kubernetes.io/name: flockmq
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "flockmq.redis.selector" -}}
app.kubernetes.io/name: flockmq-redis
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "flockmq.common" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name (replace "+" "_" .Chart.Version) }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/part-of: flockmq
{{- end -}}

{{- define "flockmq.labels" -}}
{{ include "flockmq.selector" . }}
{{ include "flockmq.common" . }}
{{- end -}}

{{- define "flockmq.redis.labels" -}}
{{ include "flockmq.redis.selector" . }}
{{ include "flockmq.common" . }}
{{- end -}}

{{- define "flockmq.image" -}}
{{- with .Values.image -}}
{{- if .digest -}}
{{ .repository }}@{{ .digest }}
{{- else -}}
{{ .repository }}:{{ default $.Chart.AppVersion .tag }}
{{- end -}}
{{- end -}}
{{- end -}}

{{- /* Names of Secrets: the operator's, or the chart's own. */ -}}
{{- define "flockmq.secret.redis" -}}
{{- default (printf "%s-redis" (include "flockmq.fullname" .)) .Values.redis.existingSecret -}}
{{- end -}}

{{- define "flockmq.secret.users" -}}
{{- default (printf "%s-users" (include "flockmq.fullname" .)) .Values.users.existingSecret -}}
{{- end -}}

{{- define "flockmq.secret.tls" -}}
{{- default (printf "%s-tls" (include "flockmq.fullname" .)) .Values.tls.existingSecret -}}
{{- end -}}

{{- /* Whether the chart makes the first user: "yes" or empty. */ -}}
{{- define "flockmq.first" -}}
{{- if not (or .Values.users.existingSecret .Values.users.passwords) }}yes{{ end -}}
{{- end -}}

{{- /* Whether clients may connect without TLS: "yes" or empty. */ -}}
{{- define "flockmq.plain" -}}
{{- if kindIs "invalid" .Values.plain }}{{ if not .Values.tls.enabled }}yes{{ end }}{{ else if .Values.plain }}yes{{ end -}}
{{- end -}}

{{- /* Transports that are on, as a JSON object of port names to ports of the pods. */ -}}
{{- define "flockmq.transports" -}}
{{- $on := dict -}}
{{- if include "flockmq.plain" . }}{{ $_ := set $on "mqtt" 1883 }}{{ end -}}
{{- if .Values.tls.enabled }}{{ $_ := set $on "mqtts" 8883 }}{{ end -}}
{{- if .Values.websocket.enabled -}}
{{- if include "flockmq.plain" . }}{{ $_ := set $on "ws" 8083 }}{{ end -}}
{{- if .Values.tls.enabled }}{{ $_ := set $on "wss" 8084 }}{{ end -}}
{{- end -}}
{{- $on | toJson -}}
{{- end -}}

{{- /* Ports where connections begin with a PROXY header, by the transport that they stand for. */ -}}
{{- define "flockmq.proxied" -}}
{{- $on := dict -}}
{{- if .Values.proxyProtocol.enabled -}}
{{- if include "flockmq.plain" . }}{{ $_ := set $on "mqtt" 1884 }}{{ end -}}
{{- if .Values.tls.enabled }}{{ $_ := set $on "mqtts" 8885 }}{{ end -}}
{{- end -}}
{{- $on | toJson -}}
{{- end -}}

{{- /* Addresses that nodes listen on, as a JSON list. */ -}}
{{- define "flockmq.listen" -}}
{{- $prefixes := dict "mqtt" "0.0.0.0:" "mqtts" "mqtts://0.0.0.0:" "ws" "ws://0.0.0.0:" "wss" "wss://0.0.0.0:" -}}
{{- $all := list -}}
{{- range $port, $number := . }}{{ $all = append $all (print (get $prefixes $port) $number) }}{{ end -}}
{{- $all | toJson -}}
{{- end -}}

{{- /* The configuration file: dotted keys, then the operator's tables. A scalar or a list of JSON is one of TOML, too. */ -}}
{{- define "flockmq.toml" -}}
{{- $keys := dict
      "listen" (include "flockmq.listen" (include "flockmq.transports" . | fromJson) | fromJsonArray)
      "http.listen" (list "0.0.0.0:8080")
      "http.drain" (printf "%d s" (int .Values.drainSeconds))
      "auth.password_file" "/etc/flockmq-users/passwords"
      "auth.users" true
      "log.format" "json" -}}
{{- if .Values.acl }}{{ $_ := set $keys "auth.acl_file" "/etc/flockmq/acl" }}{{ end -}}
{{- if .Values.tls.enabled -}}
{{- $_ := set $keys "tls.certificate" "/etc/flockmq-tls/tls.crt" -}}
{{- $_ := set $keys "tls.key" "/etc/flockmq-tls/tls.key" -}}
{{- with .Values.tls.clients -}}
{{- if ne .certificate "none" -}}
{{- $_ := set $keys "tls.client_certificate" .certificate -}}
{{- $_ := set $keys "tls.client_ca" "/etc/flockmq-clients/ca.crt" -}}
{{- $_ := set $keys "tls.username_from" .usernameFrom -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if .Values.websocket.origins }}{{ $_ := set $keys "websocket.origins" .Values.websocket.origins }}{{ end -}}
{{- if .Values.proxyProtocol.enabled -}}
{{- $_ := set $keys "proxy.listen" (include "flockmq.listen" (include "flockmq.proxied" . | fromJson) | fromJsonArray) -}}
{{- $_ := set $keys "proxy.trusted" .Values.proxyProtocol.trusted -}}
{{- end -}}
{{- range $key, $value := .Values.settings }}{{ $_ := set $keys $key $value }}{{ end -}}
{{- range $key := keys $keys | sortAlpha -}}
{{ $key }} = {{ get $keys $key | toJson }}
{{ end -}}
{{- with .Values.config }}
{{ . | trim }}
{{ end -}}
{{- end -}}
