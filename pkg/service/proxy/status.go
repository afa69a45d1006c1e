package proxy

import (
	"net/netip"
	"slices"
	"time"

	"github.com/kubeveil/kubeveil/pkg/service"
)

// Status is how it stands with the table.
type Status struct {
	// Listed reports whether services were listed since this process began; before, the table is
	// the last process's.
	Listed bool
	// Services counts those that are known.
	Services int
	// Used and Limits are entries of the maps.
	Used, Limits service.Limits
	// APIServers are the backends of entry 0, dead ones included.
	APIServers []APIServer
	// Failed is why the table cannot be written now, "" when it can; Failures counts.
	Failed   string
	Failures uint64
	// Problems are what services of the table could not have, as sentences.
	Problems []string
}

// APIServer is how it stands with one.
type APIServer struct {
	Addr netip.AddrPort
	// Up reports whether it answers; Since is when that began, zero while nothing is known yet.
	Up    bool
	Since time.Time
}

// Status is how it stands now; numbers and problems may be some seconds old.
func (p *Proxy) Status() Status {
	p.mu.Lock()
	s := p.status
	s.Problems = slices.Clone(s.Problems)
	p.mu.Unlock()
	s.APIServers = p.api.status()
	s.Problems = append(s.Problems, p.health.problems()...)
	return s
}

func (p *Proxy) noteSizes() {
	used, services := p.planner.Sizes(), p.planner.Services()
	p.mu.Lock()
	p.status.Used, p.status.Services = used, services
	p.mu.Unlock()
}

// findProblems logs each problem once, when it is new, and that it is over.
func (p *Proxy) findProblems() {
	var now []string
	for _, err := range p.planner.Problems() {
		now = append(now, err.Error())
	}
	p.mu.Lock()
	before := p.status.Problems
	p.status.Problems = now
	p.mu.Unlock()
	const most = 20 // of one kind in the log; all are in the status
	for i, text := range newIn(now, before) {
		if i == most {
			p.log.Warn("more services have problems: see veilctl status")
			break
		}
		p.log.Warn("a service is not served as it asks", "problem", text)
	}
	if n := len(newIn(before, now)); n > 0 {
		p.log.Info("problems of services are over", "number", n)
	}
}

// newIn are those of a, sorted, that are not in b, sorted.
func newIn(a, b []string) []string {
	var out []string
	for _, text := range a {
		if _, had := slices.BinarySearch(b, text); !had {
			out = append(out, text)
		}
	}
	return out
}
