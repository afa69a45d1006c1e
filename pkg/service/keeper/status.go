package keeper

import (
	"slices"

	"github.com/kubeveil/kubeveil/pkg/service"
	"github.com/kubeveil/kubeveil/pkg/service/apiserver"
)

// Status is the state of the table of services.
type Status struct {
	// Listed reports whether this process has listed the services. Until then, the table is as the
	// last process left it.
	Listed bool
	// Services is the number of known services.
	Services int
	// Used and Limits are the used and the available entries of the maps.
	Used, Limits service.Limits
	API          apiserver.Status
	// Failed is the error of the last write, "" if it succeeded. Failures counts failed writes.
	Failed   string
	Failures uint64
	// Problems are sentences about services that are not served as their specification requires.
	Problems []string
}

// Status returns the current state. Numbers and problems may be some seconds old.
func (k *Keeper) Status() Status {
	s := *k.shown.Load()
	s.Listed = k.inbox.isListed()
	s.API = k.api.Status()
	s.Problems = slices.Concat(s.Problems, k.health.Problems())
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
