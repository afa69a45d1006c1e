package apiserver

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/kubeveil/kubeveil/pkg/service"
	"github.com/kubeveil/kubeveil/pkg/service/apiserver/prober"
)

// Status is the state of the API servers.
type Status struct {
	// Servers are the backends of entry 0, dead ones included, sorted.
	Servers []ServerStatus
	// Frontends are the addresses of Known.Host.
	Frontends []service.HostFrontend
	// Closed counts the connections to API servers that were closed.
	Closed Closed
	// Problems are sentences about certificates of servers and what they name, sorted.
	Problems []string
}

// ServerStatus is the state of one API server.
type ServerStatus struct {
	Addr netip.AddrPort
	// Up reports whether it answers, with a certificate that may be used. Since is the time of Up's
	// last change, or the time when the server stopped answering if that was later. It is zero
	// before the first probe result.
	Up    bool
	Since time.Time
	// Connections is the number of connections of the node and its pods, usually counted within the
	// last 30 s.
	Connections int
	// State decides about new connections: one of the constants below.
	State string
	// RoundTrip is the smoothed round trip of its pings. Zero means that it is unknown.
	RoundTrip time.Duration
}

// States of an API server. New connections go to good servers. If a family has none, they go to
// slow servers, then to servers that hang or are not ready, then to all.
const (
	StateUnknown     = "unknown" // not probed yet; it counts as good
	StateGood        = "good"
	StateSlow        = "slow"
	StateHangs       = "hangs"       // it answers pings, but no requests
	StateNotReady    = "not_ready"   // by its /readyz
	StateCertificate = "certificate" // it cannot be verified, but another server's can
	StateSilent      = "silent"
)

// Status returns the current state.
func (a *Servers) Status() Status {
	a.mu.Lock()
	defer a.mu.Unlock()
	out := Status{Frontends: a.hostLocked(), Closed: a.closing.closed, Problems: a.problemsLocked()}
	for addr, s := range a.servers {
		if s.left.IsZero() {
			out.Servers = append(out.Servers, ServerStatus{Addr: addr, Up: s.up, Since: s.since,
				Connections: s.connections, State: s.state(), RoundTrip: s.trip})
		}
	}
	slices.SortFunc(out.Servers, func(x, y ServerStatus) int { return x.Addr.Compare(y.Addr) })
	return out
}

func (s *server) state() string {
	switch {
	case !s.probed:
		return StateUnknown
	case !s.answers:
		return StateSilent
	case !s.up:
		return StateCertificate
	case s.unready:
		return StateNotReady
	case s.use == useUnready:
		return StateHangs
	case s.use == useSlow:
		return StateSlow
	}
	return StateGood
}

// problemsLocked returns sentences about the certificates of servers and what they name, sorted.
func (a *Servers) problemsLocked() (out []string) {
	for addr, s := range a.servers {
		if s.left.IsZero() && s.trust == prober.TrustRefused {
			out = append(out, fmt.Sprintf("the certificate of the API server %s cannot be verified "+
				"by the CA of veild's kubeconfig: %v; check that no attacker answers for it, then "+
				"renew the certificate or the CA in the kubeconfig", addr, s.distrust))
		}
	}
	out = append(out, a.hostProblemsLocked()...)
	slices.Sort(out)
	return out
}
