package link

import (
	"net/netip"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/pkg/service/bpfmaps"
)

// Flows of services are listed with their ends, also flows past netfilter. A closed flow is not
// listed.
func TestFlowsAreListedUntilTheyAreClosed(t *testing.T) {
	bothHooks(t, func(t *testing.T, withTCX bool) {
		r := newRouted(t, withTCX, true)
		for i, to := range clusterAt {
			ask(t, r.pod, "udp", to, "53", "")
			ask(t, r.client, "udp", outsideAt[i], "53", "")
			ask(t, r.client, "tcp", outsideAt[i], "80", "")
		}

		var got []string
		errtest.Must(t, r.EachFlow(func(f bpfmaps.Flow) bool {
			if f.Protocol != unix.IPPROTO_UDP || !f.Client.IsValid() {
				t.Errorf("flow %+v, want UDP with a client", f)
			}
			got = append(got, f.Service.String()+" "+f.Backend.Addr().String())
			return true
		}))
		var want []string
		for i := range clusterAt {
			for _, service := range []string{clusterAt[i], outsideAt[i]} {
				want = append(want, netip.AddrPortFrom(netip.MustParseAddr(service), 53).String()+
					" "+otherAt[i])
			}
		}
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Errorf("flows %q, want %q", got, want)
		}
	})
}
