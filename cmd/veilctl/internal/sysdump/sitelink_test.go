package sysdump

import "testing"

func TestSiteLinksNameNoService(t *testing.T) {
	for text, want := range map[string]string{
		"endpoint 10.0.0.1 of service shop/web is refused": "endpoint 10.0.0.1 of service " +
			"NAMESPACE/NAME is refused",
		"import shop/web needs the name of the Service shop/mcs-1: delete that": "import " +
			"NAMESPACE/NAME needs the name of the Service NAMESPACE/NAME: delete that",
		"EndpointSlice shop/mcs-1-b-0: veil-site did not write it": "EndpointSlice " +
			"NAMESPACE/NAME: veil-site did not write it",
		`2 records are left out, such as record "service.shop.web.v2": no`: `2 records are left ` +
			`out, such as record "service.NAMESPACE.NAME": no`,
		"there is no namespace shop here": "there is no namespace NAMESPACE here",
		"there is no namespace kubeveil-site-b: create it": "there is no namespace " +
			"kubeveil-site-b: create it",
		"10.244.128.0/17 of b overlaps 10.244.0.0/16": "10.244.128.0/17 of b overlaps 10.244.0.0/16",
		"Get https://192.0.2.1:6443/apis/kubeveil.io/v1alpha1": "Get " +
			"https://192.0.2.1:6443/apis/kubeveil.io/v1alpha1",
	} {
		in := map[string]any{"status": map[string]any{"problems": []any{text}}}
		out := withoutServices(in).(map[string]any)["status"].(map[string]any)["problems"].([]any)
		if out[0] != want {
			t.Errorf("%q becomes %q, want %q", text, out[0], want)
		}
	}
}
