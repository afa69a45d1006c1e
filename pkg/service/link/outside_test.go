package link

import (
	"strings"
	"testing"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/service/planner"
	"github.com/kubeveil/kubeveil/pkg/service/servicetest"
)

// TestBackendsOutsideTheClusterServeOutsiders has a service whose endpoint is a host outside, as an
// administrator enters it by hand. The guard is in force.
func TestBackendsOutsideTheClusterServeOutsiders(t *testing.T) {
	bothHooks(t, func(t *testing.T, withTCX bool) {
		l := newLinked(t, withTCX)
		nettest.AddAddr(t, l.client, "u0", nettest.Prefixes("198.19.0.10/24", "fd42:9::10/64")...)
		p, err := planner.New("node-1", servicetest.Limits)
		errtest.Must(t, err)
		s := servicetest.Named("database")
		s.Ports[0].NodePort = 30080
		p.SetNodeAddrs(nettest.Addrs("198.19.0.1", "fd42:9::1"))
		p.PutService(s)
		p.PutSlice(servicetest.SliceOf("database", "198.19.0.10", "fd42:9::10"))
		errtest.Must(t, l.Apply(p.Plan()))
		listen(t, l.client)
		l.attach(t)

		for to, source := range map[string]string{"198.19.0.1:30080": "198.19.0.1:",
			"[fd42:9::1]:30080": "[fd42:9::1]:"} {
			out, err := visit(l.client, to)
			if err != nil || !strings.HasPrefix(out, "pod sees "+source) {
				t.Errorf("%s answers %q, %v, want one that sees %s; the guard dropped %v", to, out,
					err, source, l.dropped(t))
			}
		}
	})
}
