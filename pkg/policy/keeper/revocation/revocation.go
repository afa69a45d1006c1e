package revocation

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"time"

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

// Bounds of one reading.
const (
	// mostFound bounds the connections that one reading returns. The next reading returns others.
	mostFound = 65536
	// mostPiece bounds the connections that are deleted while no plan can come in force: 5 ms.
	mostPiece = 1024
	// mostAnswers bounds the flows of one address of a pod to which the table drops answers, within
	// nftables.AnswersDropped.
	mostAnswers = 1024
)

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
	// mostFound, mostPiece and mostAnswers are the constants of these names, except in tests.
	mostFound, mostPiece, mostAnswers int
	// conn is nil until it is needed. It stays open, because closing it would delay the next
	// transaction of nftables (see nfnl). Only Once uses it.
	conn    *nfnl.Conn
	answers answerCounts
	// afterPiece is called after each piece in tests. It is nil in programs.
	afterPiece func()

	mu sync.Mutex // guards what follows, and is held while a piece of the connections is deleted
	// plan is the plan in force.
	plan *policy.Plan
	// asked reports whether the known connections have to be judged. more reports whether the last
	// reading left some that are denied.
	asked, more bool
	// failed is the error of the last call of Once.
	failed error
}

// New returns a Revoker without a plan.
func New() *Revoker {
	return &Revoker{wake: make(chan struct{}, 1), mostFound: mostFound, mostPiece: mostPiece,
		mostAnswers: mostAnswers}
}

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

// work calls Once after each Ask, and again revokeEvery after an error, until ctx ends. While a
// reading leaves connections to the next one, it pauses for as long as the reading took.
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
		took := time.Since(began)
		pause := pauseAfter(took)
		switch again = nil; {
		case err != nil:
			pause, again = revokeEvery, time.After(revokeEvery)
		case r.leftSome():
			pause = min(took, revokeEvery)
			again = time.After(pause)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
	}
}

// leftSome reports whether the last reading left denied connections to the next one.
func (r *Revoker) leftSome() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.more
}

// Once judges the known connections if Ask was called since the last time. If more of them are
// denied than it deletes at once, it acts as if Ask was called again.
func (r *Revoker) Once() error {
	r.mu.Lock()
	plan, asked := r.plan, r.asked
	r.asked = false
	r.mu.Unlock()
	if !asked || plan == nil {
		return nil
	}
	more, err := r.revoke(plan)

	r.mu.Lock()
	defer r.mu.Unlock()
	if r.failed, r.more = err, more; more || err != nil {
		r.asked = true
	}
	return err
}

// revoke deletes the known connections of the node's pods that the plan does not allow, up to
// mostFound, and reports whether there are more. It keeps connections that a plan that came in
// force meanwhile allows. It returns the error of the first piece that failed.
func (r *Revoker) revoke(plan *policy.Plan) (more bool, err error) {
	own, err := OwnAddrs()
	if err != nil {
		return false, err
	}
	if r.conn == nil {
		if r.conn, err = nfnl.Open(); err != nil {
			return false, err
		}
	}
	defer func() {
		if err != nil {
			// The socket may hold answers that were not read.
			err = errors.Join(err, r.Close())
		}
	}()
	j := &judge{own: own}
	j.follow(plan)
	found, err := nl.FindSome(r.conn, r.mostFound, j.denied)
	if err != nil {
		return false, err
	}

	for found.Len() > 0 {
		// A piece that fails is not a reason to keep the connections of later pieces.
		err = cmp.Or(err, r.end(found.Cut(r.mostPiece), j))
		if r.afterPiece != nil {
			r.afterPiece()
		}
	}
	return err == nil && found.More(), err
}

// end deletes a piece of the connections, unless the plan that is now in force allows them. If the
// table cannot drop answers to the flows without a handshake, it keeps these flows for the next
// reading and deletes the others.
func (r *Revoker) end(piece *nl.Connections, j *judge) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if j.follow(r.plan); j.changed {
		piece.Keep(j.denied)
	}
	errAnswers := r.answers.take(piece.All(), j.attached, r.mostAnswers,
		func(answers []nftables.Answer) error { return nftables.DropAnswers(r.conn, answers) })
	if errAnswers != nil {
		piece.Keep(func(c nl.Connection) bool { return !hasAnswers(c) })
	}

	n, err := piece.Delete()
	r.Revoked.Add(uint64(n))
	return errors.Join(errAnswers, err)
}

// judge judges connections by a plan.
type judge struct {
	own  map[netip.Addr]bool
	plan *policy.Plan
	// denied reports whether the plan ends a known connection. attached are its pods' addresses.
	denied   func(nl.Connection) bool
	attached map[netip.Addr]bool
	// changed reports whether an earlier plan was replaced.
	changed bool
}

// follow makes j judge by a plan.
func (j *judge) follow(plan *policy.Plan) {
	if j.plan == plan {
		return
	}
	j.changed = j.plan != nil
	j.plan, j.denied, j.attached = plan, denies(plan, j.own), plan.Attached()
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
