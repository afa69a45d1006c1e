package testbed

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/kubeveil/kubeveil/internal/errtest"
)

func TestPlan(t *testing.T) {
	prefix := netip.MustParsePrefix("198.18.192.0/24")
	seen := map[netip.Addr]bool{}
	for _, a := range ServiceAddrs(prefix) {
		seen[a] = true
	}

	for i := range 2 {
		p, err := newPlan(prefix, i)
		errtest.Must(t, err)
		share := netip.PrefixFrom(p.ClearGateway, nodePrefixBits).Masked()
		for _, a := range []netip.Addr{p.ClearPod, p.ClearGateway, p.BarePod, p.BareGateway} {
			if seen[a] || !share.Contains(a) || !prefix.Contains(a) {
				t.Errorf("node %d: %v is used twice or outside of %v", i, a, share)
			}
			seen[a] = true
		}
	}

	if len(seen) != 10 {
		t.Errorf("%d addresses, want 10", len(seen))
	}

	for _, bad := range []string{"198.18.192.0/27", "fd42::/64"} {
		if _, err := newPlan(netip.MustParsePrefix(bad), 0); err == nil ||
			!strings.Contains(err.Error(), bad) {
			t.Errorf("%s: error %v", bad, err)
		}
	}

	if _, err := newPlan(netip.Prefix{}, 0); err == nil {
		t.Error("no prefix gave no error")
	}
}
