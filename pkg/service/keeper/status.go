package keeper

import (
	"net/netip"
	"slices"
	"time"

	"github.com/kubeveil/kubeveil/pkg/service"
)

// Status is the state of the table of services.
type Status struct {
	// Listed reports whether this process has listed the services. Before, the table is that of the
	// last process.
	Listed bool
	// Services is the number of known services.
	Services int
	// Used and Limits are the used and the available entries of the maps.
	Used, Limits service.Limits
	// APIServers are the backends of entry 0, dead ones included.
	APIServers []APIServer
	// APIFrontends are the addresses of APIServers.Host.
	APIFrontends []HostFrontend
	// Closed counts the connections to API servers that were closed.
	Closed Closed
	// Failed is the error of the last write, "" if it succeeded. Failures counts failed writes.
	Failed   string
	Failures uint64
	// Problems are sentences that say which service is not served as it asks, and why.
	Problems []string
	// APIProblems are sentences about API servers.
	APIProblems []string
}

// APIServer is the state of one API server.
type APIServer struct {
	Addr netip.AddrPort
	// Up reports whether it answers, with a certificate that may be used. Since is when that last
	// changed, or when it stopped answering if that was later; zero before the first probe result.
	Up    bool
	Since time.Time
	// Connections counts the connections of the node and its pods, in general at most half a minute
	// ago.
	Connections int
	// State decides about new connections: one of the constants below.
	State string
	// RoundTrip is the smoothed round trip of its pings. Zero means that it is unknown.
	RoundTrip time.Duration
}

// States of an API server. New connections go to the good ones. If a family has none, they go to
// slow ones, then to those that hang or are not ready, then to all.
const (
	StateUnknown     = "unknown" // not probed yet; it counts as good
	StateGood        = "good"
	StateSlow        = "slow"
	StateHangs       = "hangs"       // it answers pings, but no requests
	StateNotReady    = "not_ready"   // by its /readyz
	StateCertificate = "certificate" // it cannot be verified, and another server is
	StateSilent      = "silent"
)

// Status returns the current state. Numbers and problems may be some seconds old.
func (k *Keeper) Status() Status {
	s := *k.shown.Load()
	s.Listed = k.inbox.isListed()
	s.APIServers, s.Closed = k.api.status()
	s.APIFrontends = k.api.hostFrontends()
	s.Problems = slices.Concat(s.Problems, k.health.problems())
	s.APIProblems = k.api.problems()
	return s
}

// show publishes a Status with the changes that f makes. Only the loop calls it. What was published
// never changes.
func (k *Keeper) show(f func(*Status)) {
	next := *k.shown.Load()
	f(&next)
	k.shown.Store(&next)
}

func (k *Keeper) noteSizes() {
	used, services := k.own.planner.Sizes(), k.own.planner.Services()
	k.show(func(s *Status) { s.Used, s.Services = used, services })
}

// findProblems logs each new problem once, and how many problems are over.
func (k *Keeper) findProblems() {
	var now []string
	for _, err := range k.own.planner.Problems() {
		now = append(now, err.Error())
	}
	before := k.shown.Load().Problems
	k.show(func(s *Status) { s.Problems = now })
	const most = 20 // problems in the log at once; the status has all
	for i, text := range newIn(now, before) {
		if i == most {
			k.log.Warn("more services have problems: see veilctl status")
			break
		}
		k.log.Warn("a service is not served as it asks", "problem", text)
	}
	if n := len(newIn(before, now)); n > 0 {
		k.log.Info("problems of services are over", "number", n)
	}
}

// newIn returns the texts in a that b lacks. Both are sorted.
func newIn(a, b []string) []string {
	var out []string
	for _, text := range a {
		if _, had := slices.BinarySearch(b, text); !had {
			out = append(out, text)
		}
	}
	return out
}
