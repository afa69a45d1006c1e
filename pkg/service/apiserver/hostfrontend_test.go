package apiserver

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/service"
)

// hostFrontend is the first server's own address.
var hostFrontend = netip.MustParseAddrPort("198.18.0.1:6443")

// An address leads to the servers whose verified certificates name it, of the best use, and to none
// that does not answer. Otherwise it is not translated, and a problem names the remedy.
func TestServersOfHostFrontends(t *testing.T) {
	first, second, other := hostFrontend, netip.MustParseAddrPort("198.18.0.2:6443"),
		netip.MustParseAddrPort("[fd42::1]:6443")
	named := observation{up: true, trust: trusted, named: []netip.AddrPort{hostFrontend}}
	unnamed := observation{up: true, trust: trusted}
	wrong := observation{up: true, trust: trustRefused, distrust: errors.New("signed by another CA")}
	type step struct {
		addr netip.AddrPort
		o    observation
	}

	for name, c := range map[string]struct {
		steps   []step
		want    string
		problem string // a part of it; empty without a problem
	}{
		"nothing is known yet": {nil, "", ""},
		"both name it":         {[]step{{first, named}, {second, named}}, "1 2", ""},
		"one names it": {[]step{{first, named}, {second, unnamed}}, "1",
			"named by the certificates of 1 of 2 API servers, and does not lead to 198.18.0.2:6443; add " +
				"198.18.0.1 to the names of these certificates"},
		"none names it": {[]step{{first, unnamed}, {second, unnamed}}, "",
			"198.18.0.1:6443 is not translated, so its clients do not fail over: no certificate of " +
				"an API server names it, of 198.18.0.1:6443, 198.18.0.2:6443; add 198.18.0.1 to"},
		"one of the other family names it": {[]step{{other, named}, {first, unnamed}}, "",
			"no certificate of an API server names it, of 198.18.0.1:6443;"},
		"no certificate is right": {[]step{{first, wrong}, {second, wrong}}, "",
			"no certificate of an API server could be verified"},
		"a certificate is renewed without it": {[]step{{first, named}, {second, named},
			{second, unnamed}}, "1", "certificates of 1 of 2"},
		"a certificate becomes wrong": {[]step{{first, named}, {second, named}, {second, wrong}}, "1",
			""},
		"one is silent": {[]step{{first, named}, {second, named}, {first, observation{}}}, "2", ""},
		"one was silent": {[]step{{first, named}, {second, named}, {first, observation{}},
			{first, observation{up: true}}}, "1 2", ""},
		"all that name it are silent": {[]step{{first, named}, {second, unnamed},
			{first, observation{}}}, "", "certificates of 1 of 2"},
		"one is not ready": {[]step{{first, named}, {second, named},
			{first, observation{up: true, readiness: notReady}}}, "2", ""},
		"none that names it is ready": {[]step{{first, named}, {second, unnamed},
			{first, observation{up: true, readiness: notReady}}}, "1", "certificates of 1 of 2"},
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
					t.Errorf("step %d changed the frontends and does not say so", i)
				}
			}

			host := a.Entry().Host
			if len(host) != 1 || host[0].Addr != hostFrontend {
				t.Fatalf("frontends %+v", host)
			}
			if got := shortly(service.APIServer{Backends: host[0].Backends}); got != c.want {
				t.Errorf("it leads to %q, want %q", got, c.want)
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
		"no CA": {hostFrontend.String(), nil, "has no CA to verify certificates by"},
		"no server of its family": {"[fd42::9]:6443", func(tls.ConnectionState) error { return nil },
			"no API server of its family is known"},
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

// What the last process's frontends led to is kept until the first certificates are seen: a restart
// leaves no time in which an address is not translated.
func TestHostFrontendsAreAdopted(t *testing.T) {
	both := nettest.AddrPorts("198.18.0.1:6443", "198.18.0.2:6443")
	known := Known{Frontends: nettest.AddrPorts(apiFrontend), Remembered: both,
		Host: []netip.AddrPort{hostFrontend}}
	named := observation{up: true, trust: trusted, named: []netip.AddrPort{hostFrontend}}
	expect := func(situation string, a *Servers, want ...netip.AddrPort) {
		t.Helper()
		if got := a.Status().Frontends; len(got) != 1 || !slices.Equal(got[0].Servers, want) {
			t.Errorf("%s: it leads to %+v, want %v", situation, got, want)
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
	next.observe(both[1], observation{up: true, trust: trusted}, time.Now())
	expect("a certificate does not name it any more", next, both[0])
}

// stateWith returns the content of maps that have only an entry 0.
func stateWith(t *testing.T, e service.APIServer) service.State {
	t.Helper()
	planner, err := service.New("node-1", service.APILimits)
	if err != nil {
		t.Fatal(err)
	}

	planner.SetAPIServer(e)
	c := planner.Plan()
	s := service.State{Frontends: map[service.FrontendKey]service.Frontend{},
		Backends: make([]service.Backend, service.APILimits.BackendSlots)}
	for i, k := range c.Frontends.Keys {
		s.Frontends[k] = c.Frontends.Values[i]
	}
	for i, k := range c.Backends.Keys {
		s.Backends[k] = c.Backends.Values[i]
	}
	return s
}

// A probe looks for the addresses in the certificate, and only in one that is verified.
func TestProbesReadNames(t *testing.T) {
	addr, _, _ := testServer(t, true) // its certificate names 127.0.0.1 and ::1
	wanted := nettest.AddrPorts("127.0.0.1:6443", "192.0.2.1:6443", "[::1]:6443")

	for name, c := range map[string]struct {
		verify func(tls.ConnectionState) error
		want   []netip.AddrPort
	}{
		"verified": {func(tls.ConnectionState) error { return nil },
			nettest.AddrPorts("127.0.0.1:6443", "[::1]:6443")},
		"wrong":        {func(tls.ConnectionState) error { return errors.New("another CA") }, nil},
		"not verified": {nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			seen := make(chan observation, 100)

			probing(t, addr, func(p *probe) {
				p.names, p.verify, p.report = wanted, c.verify, func(o observation) { seen <- o }
			})
			select {
			case o := <-seen:
				if !o.up || !slices.Equal(o.named, c.want) {
					t.Errorf("observed %+v, want the names %v", o, c.want)
				}
			case <-time.After(10 * time.Second):
				t.Fatal("the probe reports nothing")
			}
		})
	}
}

// Each socket of a probe has its mark before it connects: programs read it then.
func TestProbesAreMarked(t *testing.T) {
	nettest.NeedCapability(t, unix.CAP_NET_ADMIN, "sets SO_MARK")
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	const mark = 0x1000
	conn, err := (probe{mark: mark}).dialer(func(uint64) {}).DialContext(t.Context(), "tcp",
		l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	raw, err := conn.(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}

	var got int
	var gotErr error
	if err := raw.Control(func(fd uintptr) {
		got, gotErr = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_MARK)
	}); err != nil || gotErr != nil || got != mark {
		t.Errorf("the mark is %#x, %v, %v; want %#x", got, err, gotErr, mark)
	}
}
