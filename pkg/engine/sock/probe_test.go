package sock

import (
	"os/exec"
	"testing"

	"github.com/kubeveil/kubeveil/internal/nettest"
)

// The probe trusts the offloads of a kernel that carries segmented datagrams, and not the offloads
// of a kernel that loses them.
func TestProbe(t *testing.T) {
	nft := nettest.NeedProgram(t, "nft")
	for _, tc := range []struct {
		name  string
		rules []string
		want  offloads
	}{
		{"everything comes", nil, whole},
		{"what is segmented is lost", []string{"meta length > 1000 drop"}, offloads{}},
		{"nothing comes", []string{"drop"}, whole},
	} {
		t.Run(tc.name, func(t *testing.T) {
			ns := nettest.NewNS(t)
			ns.Run(t, func() error {
				for _, r := range append([]string{"add table inet t", "add chain inet t c " +
					"{ type filter hook output priority 0; }"}, tc.rules...) {
					if r[:3] != "add" {
						r = "add rule inet t c meta l4proto udp " + r
					}
					if out, err := exec.Command(nft, r).CombinedOutput(); err != nil {
						t.Fatalf("%s: %v: %s", r, err, out)
					}
				}

				for _, v6 := range []bool{false, true} {
					if got := probe(v6); got != tc.want {
						t.Errorf("IPv6 %v: got %+v, want %+v", v6, got, tc.want)
					}
				}
				return nil
			})
		})
	}
}
