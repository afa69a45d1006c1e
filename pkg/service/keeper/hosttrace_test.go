package keeper

import (
	"net/http"
	"net/netip"
	"testing"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/pkg/service"
	"github.com/kubeveil/kubeveil/pkg/service/planner"
)

// For the host, a trace of an address that leads to no API server has the same result as for pods.
func TestTraceForTheHost(t *testing.T) {
	p, err := planner.New("node-1", service.DefaultLimits)
	errtest.Must(t, err)
	servers := []netip.AddrPort{netip.MustParseAddrPort("198.18.0.1:6443")}
	p.SetAPIServer(service.APIServer{Backends: servers,
		Frontends: []netip.AddrPort{netip.MustParseAddrPort("198.18.128.1:443")},
		Host: []service.HostFrontend{{Addr: netip.MustParseAddrPort("198.18.0.8:6443")},
			{Addr: netip.MustParseAddrPort("198.18.0.9:6443"), Backends: servers}}})
	p.Plan()

	for addr, want := range map[string]string{"198.18.0.9:6443": "host",
		"198.18.128.1:443": "inside", "198.18.0.8:6443": ""} {
		r, err := http.NewRequest(http.MethodGet, "/?protocol=TCP&scope=host&addr="+addr, nil)
		errtest.Must(t, err)
		got, err := traceService(p, r)
		if f, ok := got.(service.FrontendView); (err == nil) != (want != "") ||
			ok && f.Scope.String() != want {
			t.Errorf("trace of %s: %+v, %v, want scope %q", addr, got, err, want)
		}
	}
}
