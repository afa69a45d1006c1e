package passage

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/kubeveil/kubeveil/pkg/firewall"
)

const (
	// proofRetry is the pause after a probe that did not pass. A probe whose datagrams are dropped
	// takes a second per family.
	proofRetry = 5 * time.Second
	// proofPause is the shortest time between two probes that changes of filters cause, because a
	// program may change its rules all the time.
	proofPause = 10 * time.Second
	// proofLegacy is the interval of probes if iptables-legacy has a filter, because the kernel
	// sends no notifications about its changes.
	proofLegacy = 45 * time.Second
	// proofInterval is the interval of probes otherwise. Filters that are neither nftables nor
	// iptables have no notifications either.
	proofInterval = 5 * time.Minute
	// proofDoubts is the number of successive probes without a result after which a note reports
	// that. Only probes after one that passed count.
	proofDoubts = 3
)

// Proof holds the results of probes of the path from pods into the tunnel. The zero value is ready
// for use. It is for one goroutine.
type Proof struct {
	// filtersChanged reports whether other programs changed filters since the last probe.
	filtersChanged bool
	// at is the end of the last probe. changedAt is the end of the last probe that a change of
	// filters caused.
	at, changedAt time.Time
	// passed reports whether the last probe with a result passed.
	passed bool
	// doubts counts the probes without a result since then.
	doubts int
	// Problem is a sentence about filters that drop pods' packets. Note is a sentence about probes
	// without a result. Both are empty otherwise.
	Problem, Note string
}

// FiltersChanged records that another program may have changed its filters.
func (p *Proof) FiltersChanged() { p.filtersChanged = true }

// Prove probes if that is due: at first, after filters may have changed, after a probe that did not
// pass, and at intervals. ways returns the ways to probe. runDir is as for Probe.
func (p *Proof) Prove(ctx context.Context, runDir string, ways func() []Way) {
	if p.due(time.Now(), legacyFilter) {
		err := Probe(ctx, runDir, ways())
		p.take(time.Now(), err)
	}
}

// due reports whether to probe now. legacy reports whether iptables-legacy has a filter; it is
// called only if that matters.
func (p *Proof) due(now time.Time, legacy func() bool) bool {
	since := now.Sub(p.at)
	switch {
	case p.at.IsZero():
		return true
	case !p.passed || p.doubts > 0:
		return since >= proofRetry
	case p.filtersChanged && now.Sub(p.changedAt) >= proofPause:
		return true
	case since >= proofInterval:
		return true
	}
	return since >= proofLegacy && legacy()
}

// take records the result of a probe that ended now.
func (p *Proof) take(now time.Time, err error) {
	if p.filtersChanged && !p.at.IsZero() {
		p.changedAt = now
	}
	p.filtersChanged, p.at = false, now
	switch {
	case err == nil:
		p.passed, p.doubts, p.Problem, p.Note = true, 0, "", ""
	case errors.Is(err, ErrDropped):
		p.passed, p.doubts, p.Problem, p.Note = false, 0, dropped(err), ""
	default:
		if p.doubts++; !p.passed || p.doubts >= proofDoubts {
			p.Note = err.Error()
		}
	}
}

// legacyFilter reports whether iptables-legacy may have a filter.
func legacyFilter() bool {
	has, err := firewall.Legacy("/proc")
	return has || err != nil
}

// dropped returns a sentence about err with the filters that may drop pods' packets, and the
// remedy.
func dropped(err error) string {
	suspects := []string{"veild found no filter that drops them: look at `nft list ruleset` and " +
		"`iptables-legacy -S FORWARD`"}
	if filters, readErr := firewall.Foreign(); readErr == nil && len(filters) > 0 {
		suspects = nil
		for _, f := range filters {
			suspects = append(suspects, f.String())
		}
	}
	return fmt.Sprintf("%v; %s", err, strings.Join(suspects, "; "))
}
