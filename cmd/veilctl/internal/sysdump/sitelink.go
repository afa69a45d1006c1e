package sysdump

import (
	"regexp"
	"strings"
)

// Names of users' objects in the sentences of a SiteLink.
var (
	serviceName = regexp.MustCompile(`\b(?i)((?:service|export|import|endpointslice|` +
		`serviceimport|serviceexport)s?) [a-z0-9][-a-z0-9]*/[-.a-z0-9]*[a-z0-9]`)
	recordName = regexp.MustCompile(`\bservice\.[a-z0-9][-a-z0-9]*\.[-.a-z0-9]*[a-z0-9]`)
	inSpace    = regexp.MustCompile(`\bnamespace "?[a-z0-9][-a-z0-9]*`)
)

// withoutServices returns the content of a SiteLink without names of services and their namespaces:
// v is a value of JSON.
func withoutServices(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for k := range v {
			v[k] = withoutServices(v[k])
		}
	case []any:
		for i := range v {
			v[i] = withoutServices(v[i])
		}
	case string:
		v = serviceName.ReplaceAllString(v, "$1 NAMESPACE/NAME")
		v = recordName.ReplaceAllString(v, "service.NAMESPACE.NAME")
		return inSpace.ReplaceAllStringFunc(v, func(text string) string {
			name := strings.Trim(strings.TrimPrefix(text, "namespace "), `"`)
			if strings.HasPrefix(name, "kube") { // kube-system, kubeveil-site-b
				return text
			}
			return "namespace NAMESPACE"
		})
	}
	return v
}
