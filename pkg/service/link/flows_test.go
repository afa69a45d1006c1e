package link

import (
	"net"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/pkg/service/bpfmaps"
)

// Flows of services are listed with their ends, also flows past netfilter. A connection that one end
// has closed is listed, because the other end may still send.
func TestFlowsAreListedUntilTheyAreOver(t *testing.T) {
	bothHooks(t, func(t *testing.T, withTCX bool) {
		r := newRouted(t, withTCX, true)
		for i, to := range clusterAt {
			ask(t, r.pod, "udp", to, "53", "")
			ask(t, r.client, "udp", outsideAt[i], "53", "")
			ask(t, r.client, "tcp", outsideAt[i], "80", "")
		}

		var got []string
		errtest.Must(t, r.EachFlow(func(f bpfmaps.Flow) bool {
			if !f.Client.IsValid() || f.Protocol == unix.IPPROTO_TCP && !f.Established {
				t.Errorf("flow %+v, want a client, and TCP established", f)
			}
			got = append(got, f.Service.String()+" "+f.Backend.Addr().String())
			return true
		}))
		var want []string
		for i := range clusterAt {
			for _, service := range []string{clusterAt[i] + " 53", outsideAt[i] + " 53",
				outsideAt[i] + " 80"} {
				addr, port, _ := strings.Cut(service, " ")
				want = append(want, net.JoinHostPort(addr, port)+" "+otherAt[i])
			}
		}
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Errorf("flows %q, want %q", got, want)
		}
	})
}
