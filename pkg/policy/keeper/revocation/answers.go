package revocation

import (
	"iter"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/nl"
	"github.com/kubeveil/kubeveil/pkg/policy"
	"github.com/kubeveil/kubeveil/pkg/policy/nftables"
)

// answerCounts counts the deleted flows without a handshake by the address of their pod. The table
// drops late answers to each, up to a bound, and forgets them after nftables.AnswersDropped. The
// zero value is ready.
type answerCounts struct {
	mu     sync.Mutex
	began  time.Time // since which the flows are counted
	counts map[netip.Addr]int
	most   int
}

// hasAnswers reports whether the table would take a late answer to a deleted connection for the
// first packet of another. It drops TCP segments of unknown connections.
func hasAnswers(c nl.Connection) bool {
	return c.Proto == unix.IPPROTO_UDP || c.Proto == unix.IPPROTO_SCTP
}

// take calls drop with the answers to connections that are about to be deleted: at most most for
// each address of a pod. If drop succeeds, take counts the flows. attached are the addresses of
// pods.
func (a *answerCounts) take(ending iter.Seq[nl.Connection], attached map[netip.Addr]bool, most int,
	drop func([]nftables.Answer) error) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if now := time.Now(); a.counts == nil || now.Sub(a.began) > nftables.AnswersDropped {
		a.began, a.counts = now, map[netip.Addr]int{}
	}
	a.most = most

	flows := map[netip.Addr]int{}
	var answers []nftables.Answer
	for c := range ending {
		if !hasAnswers(c) {
			continue
		}
		pod := c.Client
		if !attached[pod] {
			pod = c.Server
		}
		if flows[pod]++; a.counts[pod]+flows[pod] <= most {
			answers = append(answers, nftables.Answer{
				Src: netip.AddrPortFrom(c.Server, c.Port),
				Dst: netip.AddrPortFrom(c.Client, c.ClientPort), Proto: policy.Proto(c.Proto)})
		}
	}
	if err := drop(answers); err != nil {
		return err
	}

	for pod, n := range flows {
		a.counts[pod] += n
	}
	return nil
}

// Beyond returns the addresses of pods of which so many flows were revoked a short time ago that
// late answers to some of them are not dropped.
func (r *Revoker) Beyond() (pods []netip.Addr) {
	a := &r.answers
	a.mu.Lock()
	defer a.mu.Unlock()
	if time.Since(a.began) > nftables.AnswersDropped {
		return nil
	}
	for pod, n := range a.counts {
		if n > a.most {
			pods = append(pods, pod)
		}
	}
	return pods
}
