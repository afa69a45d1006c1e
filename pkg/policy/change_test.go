package policy_test

import (
	"testing"

	"github.com/kubeveil/kubeveil/pkg/policy"
)

func TestRefIsWrittenAsItIsRead(t *testing.T) {
	for text, want := range map[string]string{
		"NetworkPolicy/shop/web":      "NetworkPolicy/shop/web",
		"networkpolicy/shop/web":      "NetworkPolicy/shop/web",
		"clusternetworkpolicy/guests": "ClusterNetworkPolicy/guests",
		"shop/web":                    "", "NetworkPolicy/web": "", "NetworkPolicy//web": "",
		"ClusterNetworkPolicy/shop/web": "", "Pod/shop/web": "", "": "",
	} {
		r, err := policy.ParseRef(text)
		if got := r.String(); (err != nil) != (want == "") || err == nil && got != want {
			t.Errorf("ParseRef(%q): %q, %v, want %q", text, got, err, want)
		}
	}
}
