package apiserver

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/service"
	"github.com/kubeveil/kubeveil/pkg/service/apiserver/prober"
	"github.com/kubeveil/kubeveil/pkg/service/servicetest"
)

func TestServersForNewConnections(t *testing.T) {
	first, second, third := netip.MustParseAddrPort("198.18.0.1:6443"),
		netip.MustParseAddrPort("198.18.0.2:6443"), netip.MustParseAddrPort("198.18.0.3:6443")
	up := prober.Observation{Up: true}
	says := func(r prober.Readiness) prober.Observation {
		return prober.Observation{Up: true, Readiness: r}
	}
	trip := func(d time.Duration) prober.Observation {
		return prober.Observation{Up: true, Trip: d}
	}
	wrong := prober.Observation{Up: true, Trust: prober.TrustRefused,
		Distrust: errors.New("signed by another CA")}
	right := prober.Observation{Up: true, Trust: prober.Trusted}
	type step struct {
		addr  netip.AddrPort
		after time.Duration
		o     prober.Observation
	}
	const ms = time.Millisecond

	for name, c := range map[string]struct {
		steps []step
		want  string
		state string // of the first
	}{
		"all answer": {nil, "1 2 3", StateGood},
		"one is not ready": {[]step{{first, 0, says(prober.NotReady)}}, "2 3",
			StateNotReady},
		"one asks for credentials": {[]step{{first, 0, says(prober.SaysNothing)}}, "1 2 3",
			StateGood},
		"one was not ready, and asks for credentials": {[]step{{first, 0, says(prober.NotReady)},
			{first, 0, says(prober.SaysNothing)}}, "1 2 3", StateGood},
		"none is ready": {[]step{{first, 0, says(prober.NotReady)},
			{second, 0, says(prober.NotReady)}, {third, 0, says(prober.NotReady)}}, "1 2 3",
			StateNotReady},
		"none is ready, and one is silent": {[]step{{first, 0, prober.Observation{}},
			{second, 0, says(prober.NotReady)}, {third, 0, says(prober.NotReady)}}, "2 3",
			StateSilent},
		"two requests hang": {[]step{{first, 0, says(prober.Hangs)},
			{first, 0, says(prober.Hangs)}}, "1 2 3",
			StateGood},
		"three requests hang": {[]step{{first, 0, says(prober.Hangs)},
			{first, 0, says(prober.Hangs)},
			{first, 0, up}, {first, 0, says(prober.Hangs)}}, "2 3", StateHangs},
		"three requests hang, not in a row": {[]step{{first, 0, says(prober.Hangs)},
			{first, 0, says(prober.Hangs)}, {first, 0, says(prober.Ready)},
			{first, 0, says(prober.Hangs)}}, "1 2 3",
			StateGood},
		"one is slow for a moment": {[]step{{second, 0, trip(ms)}, {third, 0, trip(ms)},
			{first, 0, trip(200 * ms)}, {first, slowFor - ms, trip(200 * ms)}}, "1 2 3", StateGood},
		"one is slow": {[]step{{second, 0, trip(ms)}, {third, 0, trip(ms)},
			{first, 0, trip(200 * ms)}, {first, slowFor, trip(200 * ms)}}, "2 3", StateSlow},
		"one was slow": {[]step{{second, 0, trip(ms)}, {third, 0, trip(ms)},
			{first, 0, trip(101 * ms)}, {first, slowFor, trip(ms)}}, "1 2 3", StateGood},
		"all are slow": {[]step{{second, 0, trip(150 * ms)}, {third, 0, trip(150 * ms)},
			{first, 0, trip(200 * ms)}, {first, slowFor, trip(200 * ms)}}, "1 2 3", StateGood},
		"one is slow, the others are not ready": {[]step{{second, 0, trip(ms)}, {third, 0, trip(ms)},
			{second, 0, says(prober.NotReady)}, {third, 0, says(prober.NotReady)},
			{first, 0, trip(200 * ms)}, {first, slowFor, trip(200 * ms)}}, "1", StateSlow},
		"a wrong certificate": {[]step{{first, 0, wrong}}, "1 2 3", StateGood},
		"a wrong certificate, and a right one": {[]step{{first, 0, wrong}, {second, 0, right}}, "2 3",
			StateCertificate},
		"a wrong certificate, and a right one that falls silent": {[]step{{first, 0, wrong},
			{second, 0, right}, {second, 0, prober.Observation{}}}, "1 3", StateGood},
	} {
		t.Run(name, func(t *testing.T) {
			a := newServers(Known{Frontends: nettest.AddrPorts(apiFrontend),
				Remembered: []netip.AddrPort{first, second, third}})
			began := time.Now()
			for _, addr := range []netip.AddrPort{first, second, third} {
				a.observe(addr, up, began)
			}
			for i, s := range c.steps {
				before := a.Entry()
				changed := a.observe(s.addr, s.o, began.Add(s.after))
				if !changed && !slices.Equal(before.Backends, a.Entry().Backends) {
					t.Errorf("step %d changed entry 0, but observe returned false", i)
				}
			}
			if got := shortly(a.Entry()); got != c.want {
				t.Errorf("new connections go to %s, want %s", got, c.want)
			}

			servers := a.Status().Servers
			if servers[0].State != c.state {
				t.Errorf("the first is %q, want %q", servers[0].State, c.state)
			}
			wantProblems := 0
			if strings.HasPrefix(name, "a wrong") {
				wantProblems = 1
			}
			if got := a.Status().Problems; len(got) != wantProblems {
				t.Errorf("problems %q, want %d", got, wantProblems)
			}
			if c.state == StateNotReady || c.state == StateHangs || c.state == StateSlow {
				if got := a.due(began.Add(time.Hour)); got != nil {
					t.Errorf("connections are closed: %+v", got)
				}
			}
		})
	}
}

// shortly returns the last numbers of the backends' addresses.
func shortly(e service.APIServer) string {
	var out []string
	for _, b := range e.Backends {
		text := b.Addr().String()
		out = append(out, text[strings.LastIndexByte(text, '.')+1:])
	}
	return strings.Join(out, " ")
}

// Readiness decides about new connections but closes none. The server ends HTTP/2 connections of
// clients without credentials, as kube-apiserver does. Pings alone cannot find a server whose
// handlers hang.
func TestReadinessOverRealConnections(t *testing.T) {
	for name, c := range map[string]struct {
		status int32
		state  string
	}{
		"not ready":      {http.StatusInternalServerError, StateNotReady},
		"handlers hang":  {0, StateHangs},
		"asks for token": {http.StatusUnauthorized, StateGood},
		"forbids it":     {http.StatusForbidden, StateGood},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newTwoServers(t)
			w.begin(t, func(o *ServersConfig) {
				o.Close = func(c Closing) (int, time.Duration, error) {
					if !c.Still() { // either may miss a ping on a busy machine
						t.Errorf("connections to a server that answers are closed: %+v", c)
					}
					return 0, 0, nil
				}
			})
			w.waitBoth(t)
			w.ready.Store(c.status)
			asked := w.asked.Load()
			nettest.Until(t, 30*time.Second, "two more requests, and their outcome", func() bool {
				return w.asked.Load() >= asked+2 && w.Status().Servers[0].State == c.state
			})
			if c.state == StateGood {
				w.waitBoth(t)
				return
			}
			w.waitBackends(t, w.second)
			w.ready.Store(http.StatusOK)
			w.waitBoth(t)
		})
	}
}

// A server with a wrong certificate counts as down only while the certificate of another server is
// right.
func TestCertificatesAreVerified(t *testing.T) {
	wrong := func(tls.ConnectionState) error { return errors.New("signed by another CA") }

	for name, c := range map[string]struct {
		second func(tls.ConnectionState) error
		want   []string
	}{
		"another is right": {func(s tls.ConnectionState) error {
			if len(s.PeerCertificates) == 0 {
				return errors.New("no certificate to verify")
			}
			return nil
		}, []string{"198.18.0.2:6443"}},
		"none is right": {wrong, []string{"198.18.0.1:6443", "198.18.0.2:6443"}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newTwoServers(t)
			w.verify = map[netip.AddrPort]func(tls.ConnectionState) error{w.first: wrong,
				w.second: c.second}
			w.begin(t, nil)

			servicetest.Wait(t, "problem", func() error {
				if got := w.Status().Problems; len(got) == 0 ||
					!strings.Contains(got[0], "signed by another CA") {
					return fmt.Errorf("problems %q", got)
				}
				return nil
			})
			w.waitBackends(t, nettest.AddrPorts(c.want...)...)
		})
	}
}
