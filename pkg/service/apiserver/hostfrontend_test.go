package apiserver

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/service"
	"github.com/kubeveil/kubeveil/pkg/service/apiserver/prober"
	"github.com/kubeveil/kubeveil/pkg/service/planner"
)

// hostFrontend is the first server's own address.
var hostFrontend = netip.MustParseAddrPort("198.18.0.1:6443")

// An address leads to the servers with the best rank whose verified certificates name it, and to no
// server that does not answer. Without such a server it is not translated, and a problem names the
// remedy.
func TestServersOfHostFrontends(t *testing.T) {
	first, second, other := hostFrontend, netip.MustParseAddrPort("198.18.0.2:6443"),
		netip.MustParseAddrPort("[fd42::1]:6443")
	named := prober.Observation{Up: true, Trust: prober.Trusted,
		Named: []netip.AddrPort{hostFrontend}}
	unnamed := prober.Observation{Up: true, Trust: prober.Trusted}
	wrong := prober.Observation{Up: true, Trust: prober.TrustRefused,
		Distrust: errors.New("signed by another CA")}
	type step struct {
		addr netip.AddrPort
		o    prober.Observation
	}

	for name, c := range map[string]struct {
		steps   []step
		want    string
		problem string // a part of it; empty without a problem
	}{
		"nothing is known yet": {nil, "", ""},
		"both name it":         {[]step{{first, named}, {second, named}}, "1 2", ""},
		"one names it": {[]step{{first, named}, {second, unnamed}}, "1",
			"named by the certificates of only 1 of 2 API servers, so it is not translated to " +
				"198.18.0.2:6443; add 198.18.0.1 to the names of these certificates"},
		"none names it": {[]step{{first, unnamed}, {second, unnamed}}, "",
			"198.18.0.1:6443 is not translated, so its clients do not fail over: it is not " +
				"named by the certificates of 198.18.0.1:6443, 198.18.0.2:6443; add 198.18.0.1 to"},
		"one of the other family names it": {[]step{{other, named}, {first, unnamed}}, "",
			"it is not named by the certificates of 198.18.0.1:6443;"},
		"no certificate is right": {[]step{{first, wrong}, {second, wrong}}, "",
			"no certificate of an API server could be verified"},
		"a certificate is renewed without it": {[]step{{first, named}, {second, named},
			{second, unnamed}}, "1", "certificates of only 1 of 2"},
		"a certificate becomes wrong": {[]step{{first, named}, {second, named}, {second, wrong}}, "1",
			""},
		"one is silent": {[]step{{first, named}, {second, named},
			{first, prober.Observation{}}}, "2", ""},
		"one was silent": {[]step{{first, named}, {second, named}, {first, prober.Observation{}},
			{first, prober.Observation{Up: true}}}, "1 2", ""},
		"all that name it are silent": {[]step{{first, named}, {second, unnamed},
			{first, prober.Observation{}}}, "", "certificates of only 1 of 2"},
		"one is not ready": {[]step{{first, named}, {second, named},
			{first, prober.Observation{Up: true, Readiness: prober.NotReady}}}, "2", ""},
		"none that names it is ready": {[]step{{first, named}, {second, unnamed},
			{first, prober.Observation{Up: true, Readiness: prober.NotReady}}}, "1",
			"certificates of only 1 of 2"},
	} {
		t.Run(name, func(t *testing.T) {
			a := newServers(Known{Frontends: nettest.AddrPorts(apiFrontend),
				Remembered: []netip.AddrPort{first, second, other},
				Host:       []netip.AddrPort{hostFrontend, hostFrontend}})
			a.o.Verify = func(tls.ConnectionState) error { return nil }
			began := time.Now()
			for i, s := range c.steps {
				before := a.Entry()
				changed := a.observe(s.addr, s.o, began)
				if !changed && fmt.Sprint(before.Host) != fmt.Sprint(a.Entry().Host) {
					t.Errorf("step %d changed the frontends, but observe returned false", i)
				}
			}

			host := a.Entry().Host
			if len(host) != 1 || host[0].Addr != hostFrontend {
				t.Fatalf("frontends %+v", host)
			}
			if got := shortly(service.APIServer{Backends: host[0].Backends}); got != c.want {
				t.Errorf("the address leads to %q, want %q", got, c.want)
			}
			var got []string
			for _, p := range a.Status().Problems {
				if strings.Contains(p, "services.apiFrontends: ") {
					got = append(got, p)
				}
			}
			if c.problem == "" && len(got) != 0 || c.problem != "" && (len(got) != 1 ||
				!strings.Contains(got[0], c.problem)) {
				t.Errorf("problems %q, want %q", got, c.problem)
			}
		})
	}
}

// If certificates cannot be verified, or no server has the address's family, a problem names that.
func TestHostFrontendsThatLeadNowhere(t *testing.T) {
	for name, c := range map[string]struct {
		addr   string
		verify func(tls.ConnectionState) error
		want   string
	}{
		"no CA": {hostFrontend.String(), nil, "has no CA to verify certificates"},
		"no server of its family": {"[fd42::9]:6443", func(tls.ConnectionState) error { return nil },
			"no API server has an address of its IP family"},
	} {
		a := newServers(Known{Remembered: nettest.AddrPorts("198.18.0.1:6443"),
			Host: nettest.AddrPorts(c.addr)})
		a.o.Verify = c.verify
		a.report(hostFrontend, true)
		if got := a.Status().Problems; len(got) != 1 || !strings.Contains(got[0], c.want) {
			t.Errorf("%s: problems %q, want %q", name, got, c.want)
		}
	}
}

// The backends of the last process's frontends stay until the first certificates are verified, so
// an address is translated during a restart too.
func TestHostFrontendsAreAdopted(t *testing.T) {
	both := nettest.AddrPorts("198.18.0.1:6443", "198.18.0.2:6443")
	known := Known{Frontends: nettest.AddrPorts(apiFrontend), Remembered: both,
		Host: []netip.AddrPort{hostFrontend}}
	named := prober.Observation{Up: true, Trust: prober.Trusted,
		Named: []netip.AddrPort{hostFrontend}}
	expect := func(situation string, a *Servers, want ...netip.AddrPort) {
		t.Helper()
		if got := a.Status().Frontends; len(got) != 1 || !slices.Equal(got[0].Backends, want) {
			t.Errorf("%s: the address leads to %+v, want %v", situation, got, want)
		}
	}

	a := newServers(known)
	for _, s := range both {
		a.observe(s, named, time.Now())
	}
	expect("two certificates name it", a, both...)

	next := newServers(known)
	next.Adopt(stateWith(t, a.Entry()))
	expect("after a restart", next, both...)
	next.observe(both[1], prober.Observation{Up: true, Trust: prober.Trusted}, time.Now())
	expect("a certificate does not name it any more", next, both[0])
}

// stateWith returns the content of maps that have only an entry 0.
func stateWith(t *testing.T, e service.APIServer) planner.MapContent {
	t.Helper()
	p, err := planner.New("node-1", service.APILimits)
	errtest.Must(t, err)

	p.SetAPIServer(e)
	c := p.Plan()
	s := planner.MapContent{Frontends: map[service.FrontendKey]service.Frontend{},
		Backends: make([]service.Backend, service.APILimits.BackendSlots)}
	for i, k := range c.Frontends.Keys {
		s.Frontends[k] = c.Frontends.Values[i]
	}
	for _, run := range c.Runs {
		run.Backends.Copy(s.Backends[run.First:], 0)
	}
	return s
}
