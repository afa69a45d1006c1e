package known

import (
	"errors"
	"fmt"
	"hash/maphash"
	"net/netip"
	"time"

	"github.com/kubeveil/kubeveil/internal/nfnl"
	"github.com/kubeveil/kubeveil/internal/nl"
	"github.com/kubeveil/kubeveil/pkg/policy"
	"github.com/kubeveil/kubeveil/pkg/policy/keeper/revocation"
	"github.com/kubeveil/kubeveil/pkg/policy/planner"
	"github.com/kubeveil/kubeveil/pkg/policy/trial"
	"github.com/kubeveil/kubeveil/pkg/telemetry"
)

// View is what a keeper of policies knows at one moment.
type View struct {
	// Node is the name of this node.
	Node string
	// Planner is a copy. The receiver of the View owns it.
	Planner *planner.Planner
	// Nodes holds the names of nodes by their addresses.
	Nodes map[netip.Addr]string
	// Policies are policies of the API server that Planner lacks, because they are not in force. A
	// try adds them.
	Policies policy.Policies
	// Notes are sentences about what Planner lacks.
	Notes []string
	// Opened returns the connections of the fast path. Nil means that there is no fast path.
	Opened func() ([]nl.Opened, error)
	// Drops returns the last samples of dropped packets. Nil means that none are kept.
	Drops func() []telemetry.DroppedPacket
}

// Judge judges known connections. Its methods are for any goroutine.
type Judge struct {
	view func() (*View, error)
	// busy holds a token while a question is answered.
	busy chan struct{}
}

// New returns a Judge. view returns a new View at each call.
func New(view func() (*View, error)) *Judge {
	return &Judge{view: view, busy: make(chan struct{}, 1)}
}

// With returns a Judge that answers from other Views. It answers no question while j does.
func (j *Judge) With(view func() (*View, error)) *Judge {
	return &Judge{view: view, busy: j.busy}
}

// busyFor bounds the time for which a question waits for another one.
const busyFor = 8 * time.Second

var errBusy = errors.New("this node still answers another veilctl policy list, try or suggest: " +
	"try again later")

// look is a View with the addresses of this node.
type look struct {
	*View
	own map[netip.Addr]bool
}

// look returns what one question is answered from. The caller must call done at the end.
func (j *Judge) look() (l *look, done func(), err error) {
	select {
	case j.busy <- struct{}{}:
	case <-time.After(busyFor):
		return nil, nil, errBusy
	}
	l, done = &look{}, func() { <-j.busy }
	if l.own, err = revocation.OwnAddrs(); err == nil {
		l.View, err = j.view()
	}
	if err != nil {
		done()
	}
	return l, done, err
}

// each calls f with the connections that conntrack knows, and with those of the fast path, which
// conntrack does not see. It calls begin first, and again when it starts over.
func (l *look) each(begin func(), f func(policy.Known)) error {
	var opened []nl.Opened
	// fast holds the hashes of opened that conntrack does not have. Whole connections would take
	// five times the memory.
	fast, seed := map[uint64]struct{}{}, maphash.MakeSeed()
	if l.Opened != nil {
		var err error
		if opened, err = l.Opened(); err != nil {
			return fmt.Errorf("read connections of the fast path: %w", err)
		}
		for _, o := range opened {
			fast[maphash.Comparable(seed, knownOf(o))] = struct{}{}
		}
	}

	c, err := nfnl.Open()
	if err != nil {
		return err
	}
	err = nl.EachConnection(c, begin, func(c nl.Connection) {
		known := revocation.Known(c)
		delete(fast, maphash.Comparable(seed, known))
		f(known)
	})
	for _, o := range opened {
		if _, only := fast[maphash.Comparable(seed, knownOf(o))]; only {
			f(knownOf(o))
		}
	}
	return errors.Join(err, c.Close())
}

func knownOf(o nl.Opened) policy.Known {
	return policy.Known{Client: o.Client.Addr(), Server: o.Server.Addr(), Proto: policy.TCP,
		Port: o.Server.Port(), ClientPort: o.Client.Port()}
}

// maxNamesKept bounds the names of addresses that namer keeps.
const maxNamesKept = 1 << 16

// namer returns a function that names the pod or the node that has an address.
func (v *View) namer(plan *policy.Plan) func(netip.Addr) trial.End {
	kept := map[netip.Addr]trial.End{}
	return func(a netip.Addr) trial.End {
		if e, has := kept[a]; has {
			return e
		}
		e := trial.End{Name: a.String()}
		if whose := v.Planner.Whose(a); len(whose) == 1 {
			e.Name = whose[0].Name.String()
		} else if node := v.Nodes[a]; node != "" {
			e.Name = "node " + node
		} else {
			e.Unknown = plan.IsInside(a)
		}
		if len(kept) < maxNamesKept {
			kept[a] = e
		}
		return e
	}
}
