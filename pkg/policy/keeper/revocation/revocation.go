package revocation

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/netns"
	"github.com/kubeveil/kubeveil/internal/nfnl"
	"github.com/kubeveil/kubeveil/internal/nl"
	"github.com/kubeveil/kubeveil/pkg/policy"
	"github.com/kubeveil/kubeveil/pkg/policy/nftables"
)

// revokeEvery is the least time between the beginnings of two readings of all known connections. The
// kernel walks its table with softirqs off, 10 ms for 262,144 buckets even if they are empty, and a
// change that comes meanwhile waits. Reading takes half a core at most, since it pauses for as long
// as it last took, up to this time.
const revokeEvery = 500 * time.Millisecond

// pauseAfter returns how long to pause after a reading that took this long.
func pauseAfter(took time.Duration) time.Duration {
	return min(max(took, revokeEvery-took), revokeEvery)
}

// Revoker deletes known connections that are no longer allowed, so that their next packet is judged
// as a first packet. Make one with New. Its methods may be called concurrently, except Once and
// Close.
type Revoker struct {
	wake chan struct{}
	// Revoked counts the deleted connections.
	Revoked atomic.Uint64
	// ended has the deleted flows without a handshake, each with the time until which the table
	// drops late answers to it (see nftables.DropAnswers). Only Once uses ended, untold and conn.
	ended map[nl.Connection]time.Time
	// untold reports whether the table may lack flows of ended.
	untold bool
	// conn is nil until it is needed. It stays open, because closing it would delay the next
	// transaction of nftables (see nfnl).
	conn *nfnl.Conn

	mu sync.Mutex // guards what follows, and is held while connections are deleted
	// plan is the plan in force.
	plan *policy.Plan
	// asked reports whether the known connections have to be judged.
	asked bool
	// failed is the error of the last call of Once.
	failed error
}

// New returns a Revoker without a plan.
func New() *Revoker { return &Revoker{wake: make(chan struct{}, 1)} }

// Force calls apply, which brings a plan in force. No connection is deleted meanwhile, because the
// new plan may allow it.
func (r *Revoker) Force(plan *policy.Plan, apply func() error) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	err := apply()
	if err == nil {
		r.plan = plan
	}
	return err
}

// Ask makes Begin judge the known connections by the plan that is in force.
func (r *Revoker) Ask() {
	r.mu.Lock()
	r.asked = true
	r.mu.Unlock()
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// Begin revokes connections in the calling thread's network namespace until ctx ends. Then the
// caller must wait until ended is closed.
func (r *Revoker) Begin(ctx context.Context) (ended chan struct{}, err error) {
	ns, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return nil, fmt.Errorf("open the network namespace: %w", err)
	}
	ended = make(chan struct{})
	go func() {
		defer close(ended)
		defer func() { _ = ns.Close() }()
		defer func() { _ = r.Close() }()
		r.work(ctx, func() error {
			return netns.DoFd(int(ns.Fd()), "of policies", func() error { return r.Once() })
		})
	}()
	return ended, nil
}

// work calls Once after each Ask, and again revokeEvery after an error, until ctx ends.
func (r *Revoker) work(ctx context.Context, once func() error) {
	var again <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-r.wake:
		case <-again:
		}
		began := time.Now()
		err := once()
		pause := pauseAfter(time.Since(began))
		if again = nil; err != nil {
			pause, again = revokeEvery, time.After(revokeEvery)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
	}
}

// Once judges the known connections if Ask was called since the last time.
func (r *Revoker) Once() error {
	r.mu.Lock()
	plan, asked := r.plan, r.asked
	r.asked = false
	r.mu.Unlock()
	if !asked || plan == nil {
		return nil
	}
	n, err := r.revoke(plan)
	r.Revoked.Add(uint64(n))

	r.mu.Lock()
	defer r.mu.Unlock()
	if r.failed = err; err != nil {
		r.asked = true
	}
	return err
}

// revoke deletes the known connections of the node's pods that the plan does not allow, and returns
// their number. It keeps connections that a plan that came in force meanwhile allows.
func (r *Revoker) revoke(plan *policy.Plan) (n int, err error) {
	own, err := OwnAddrs()
	if err != nil {
		return 0, err
	}
	if r.conn == nil {
		if r.conn, err = nfnl.Open(); err != nil {
			return 0, err
		}
	}
	defer func() {
		if err != nil {
			// The socket may hold answers that were not read.
			err = errors.Join(err, r.Close())
		}
	}()
	denied := denies(plan, own)
	found, err := nl.FindConnections(r.conn, denied)
	if err != nil {
		return 0, err
	}

	r.mu.Lock()
	defer r.mu.Unlock()
	if r.plan != plan {
		denied = denies(r.plan, own)
		found.Keep(denied)
	}
	err = r.dropAnswers(found.All(), denied)
	n, err2 := found.Delete()
	return n, errors.Join(err, err2)
}

// dropAnswers makes the table drop the answers to flows that are about to be deleted. Answers to
// flows that were deleted a short time ago are still dropped, if the flows are still denied.
func (r *Revoker) dropAnswers(ending iter.Seq[nl.Connection],
	denied func(nl.Connection) bool) error {
	now := time.Now()
	maps.DeleteFunc(r.ended, func(_ nl.Connection, until time.Time) bool { return now.After(until) })
	if len(r.ended) == 0 {
		r.ended = map[nl.Connection]time.Time{}
	}
	for c := range ending {
		if c.Proto == unix.IPPROTO_UDP || c.Proto == unix.IPPROTO_SCTP {
			r.ended[c], r.untold = now.Add(nftables.AnswersDropped), true
		}
	}
	if !r.untold {
		return nil
	}

	var list []nftables.Answer
	for c := range r.ended {
		if !denied(c) {
			delete(r.ended, c)
			continue
		}
		list = append(list, nftables.Answer{Src: netip.AddrPortFrom(c.Server, c.Port),
			Dst: netip.AddrPortFrom(c.Client, c.ClientPort), Proto: policy.Proto(c.Proto)})
	}
	err := nftables.DropAnswers(r.conn, list)
	r.untold = err != nil
	return err
}

// Close closes the socket of Once. It must not run concurrently with Once.
func (r *Revoker) Close() error {
	if r.conn == nil {
		return nil
	}
	c := r.conn
	r.conn = nil
	return c.Close()
}

// denies returns a function that reports whether the plan ends a known connection.
func denies(plan *policy.Plan, own map[netip.Addr]bool) func(nl.Connection) bool {
	judge := plan.JudgesKnown(own)
	return func(c nl.Connection) bool {
		v, _, _ := judge(Known(c))
		return v != policy.Allow
	}
}

// Known returns a connection as plans judge it.
func Known(c nl.Connection) policy.Known {
	return policy.Known{Client: c.Client, Server: c.Server, Proto: policy.Proto(c.Proto),
		Port: c.Port, ClientPort: c.ClientPort, Midstream: c.Midstream}
}

// OwnAddrs returns the addresses of the node's links.
func OwnAddrs() (map[netip.Addr]bool, error) {
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return nil, err
	}
	own := make(map[netip.Addr]bool, len(addrs))
	for _, a := range addrs {
		if p, err := netip.ParsePrefix(a.String()); err == nil {
			own[p.Addr().WithZone("").Unmap()] = true
		}
	}
	return own, nil
}
