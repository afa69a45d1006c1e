package object

import (
	"net/netip"
	"testing"
)

// kube-proxy and older API servers read zeros before a number as nothing: they are not octal.
func TestPrefixesAreReadAsKubernetesDoes(t *testing.T) {
	for text, want := range map[string]string{
		"198.018.2.0/24":   "198.18.2.0/24",
		"010.000.00.0/8":   "10.0.0.0/8",
		"192.168.0.10/32":  "192.168.0.10/32",
		"fd42::/64":        "fd42::/64",
		"198.18.2.0":       "",
		"198.18..0/24":     "",
		"198.018.2.256/24": "",
		"198.0x12.2.0/24":  "",
		"198.18.2.0/024":   "",
		"fd42::00001/64":   "",
		"":                 "",
		"/24":              "",
	} {
		got, err := ParseCIDR(text)
		if want == "" && err == nil || want != "" && (err != nil || got != netip.MustParsePrefix(want)) {
			t.Errorf("%q: %v, %v, want %q", text, got, err, want)
		}
	}
}
