{{- define "kubeveil.image" -}}
{{ .repository }}:{{ .tag }}@{{ .digest }}
{{- end -}}
