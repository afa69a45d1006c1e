package kube

import (
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/cluster"
)

func serviceCIDR(name string, cidrs ...any) m {
	return m{"metadata": m{"name": name}, "spec": m{"cidrs": cidrs}}
}

func TestServiceRangesAreRead(t *testing.T) {
	f := newFakeServer(t)
	f.put(serviceCIDRsPath, serviceCIDR("kubernetes", "10.96.0.0/16", "fd00:2::/112"))
	r := start(t, f, "node-1")
	r.until("listed", func(s cluster.State) bool {
		return s.RangesListed && len(s.ServiceRanges) == 2
	})
	f.put(serviceCIDRsPath, serviceCIDR("more", "10.97.0.0/16", "nonsense", "fd00:3::/112",
		"10.98.0.0/16"))
	s := r.until("added", func(s cluster.State) bool { return len(s.ServiceRanges) == 4 })
	want := []cluster.ServiceRange{
		{Name: "kubernetes", Prefix: netip.MustParsePrefix("10.96.0.0/16")},
		{Name: "kubernetes", Prefix: netip.MustParsePrefix("fd00:2::/112")},
		{Name: "more", Prefix: netip.MustParsePrefix("10.97.0.0/16")},
		{Name: "more", Prefix: netip.MustParsePrefix("fd00:3::/112")},
	}
	if d := cmp.Diff(want, s.ServiceRanges, cmpopts.EquateComparable(netip.Prefix{})); d != "" {
		t.Errorf("ranges:\n%s", d)
	}
	if p := strings.Join(r.Problems(), "\n"); !strings.Contains(p, "ServiceCIDR more: spec.cidrs") {
		t.Errorf("problems %q", p)
	}

	f.remove(serviceCIDRsPath, "more")
	r.until("deleted", func(s cluster.State) bool { return len(s.ServiceRanges) == 2 })
	nettest.Until(t, 10*time.Second, "no problem", func() bool { return len(r.Problems()) == 0 })
}

// An API server without that API is not reported as a problem, and is seldom tried again. The
// service ranges are then unknown.
func TestServerWithoutServiceRangesIsNotAProblem(t *testing.T) {
	f := newFakeServer(t)
	f.setRefuse("GET "+serviceCIDRsPath, http.StatusNotFound)
	f.put(nodesPath, node("node-1", 1))
	r := start(t, f, "node-1", func(c *Client) { c.server.Times.Unserved = time.Hour })
	r.until("synced", func(s cluster.State) bool { return s.Synced })
	nettest.Until(t, 10*time.Second, "asked", func() bool {
		return f.count("GET "+serviceCIDRsPath) > 0
	})
	f.put(nodesPath, node("node-2", 2))
	s := r.until("a new node", func(s cluster.State) bool { return len(s.Nodes) == 2 })
	if s.RangesListed || len(r.Problems()) != 0 {
		t.Errorf("listed %t, problems %q", s.RangesListed, r.Problems())
	}
	if n := f.count("GET " + serviceCIDRsPath); n > 3 {
		t.Errorf("asked %d times", n)
	}
}

// A server that has them later, as after its upgrade, is noticed.
func TestServiceRangesOfAnUpgradedServer(t *testing.T) {
	f := newFakeServer(t)
	f.setRefuse("GET "+serviceCIDRsPath, http.StatusNotFound)
	f.put(serviceCIDRsPath, serviceCIDR("more", "10.97.0.0/16"))
	r := start(t, f, "node-1")
	r.until("synced", func(s cluster.State) bool { return s.Synced })
	f.setRefuse("GET "+serviceCIDRsPath, 0)
	r.until("listed", func(s cluster.State) bool { return len(s.ServiceRanges) == 1 })
}
