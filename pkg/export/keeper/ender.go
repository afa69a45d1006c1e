package keeper

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kubeveil/kubeveil/internal/nfnl"
	"github.com/kubeveil/kubeveil/internal/nl"
	"github.com/kubeveil/kubeveil/pkg/cluster"
)

const (
	// mostFound bounds the connections that one reading returns. The next reading returns others.
	mostFound = 1 << 16
	// mostPiece bounds the connections that are deleted at once: 5 ms.
	mostPiece = 1 << 10
	// endEvery is the least time between two readings. The kernel walks its table with softirqs
	// off, 10 ms for 262,144 buckets.
	endEvery = 500 * time.Millisecond
	// settle is the time between the end of an opening and the first reading, unless a reading is
	// due already. An address that moves from one EndpointSlice to another may be in neither for a
	// moment.
	settle = 2 * time.Second
)

// ender deletes the known connections from sites to endpoints of pods that are not open. It reads
// the kernel's table of connections after endpoints were closed, and again until it finds none: a
// packet may pass the guard before the change, and get its entry after a reading. Make it with
// newEnder.
type ender struct {
	sites []cluster.Site // that reach exports only
	pods  []netip.Prefix // contain all pods of this cluster
	log   *slog.Logger
	wake  chan struct{}
	// ended counts the deleted connections.
	ended atomic.Uint64
	// conn is nil until it is needed. Only once and close use it.
	conn *nfnl.Conn

	mu sync.Mutex
	// open holds the openings in force, sorted. It is valid if known is set.
	open  []cluster.Opening
	known bool
}

func newEnder(sites []cluster.Site, pods []netip.Prefix, log *slog.Logger) *ender {
	return &ender{sites: sites, pods: pods, log: log, wake: make(chan struct{}, 1)}
}

// inForce sets the openings that the guard enforces, and makes run read the connections if an
// endpoint was closed. The first call does so too, because endpoints may have been closed while no
// veild ran.
func (e *ender) inForce(open []cluster.Opening) {
	e.mu.Lock()
	defer e.mu.Unlock()
	still := func(o cluster.Opening) bool {
		_, found := slices.BinarySearchFunc(open, o, cluster.Opening.Compare)
		return found
	}
	same := len(open) == len(e.open) && (len(open) == 0 || &open[0] == &e.open[0])
	closed := !e.known || !same && slices.ContainsFunc(e.open,
		func(o cluster.Opening) bool { return !still(o) })
	e.open, e.known = open, true
	if !closed {
		return
	}

	select {
	case e.wake <- struct{}{}:
	default:
	}
}

// run deletes connections in the network namespace of the process until ctx ends.
func (e *ender) run(ctx context.Context) {
	defer e.close()
	var again <-chan time.Time
	failed, dirty := false, false
	for {
		select {
		case <-ctx.Done():
			return
		case <-e.wake:
			// A timer that runs stays, so that endpoints that flap do not put off the reading.
			if again == nil {
				again = time.After(settle)
			} else {
				dirty = true
			}
			continue
		case <-again:
		}

		began := time.Now()
		n, err := e.once()
		if err != nil && !failed {
			e.log.Warn("known connections of sites to closed endpoints cannot be deleted; it is "+
				"tried again", "error", err)
		}
		if failed = err != nil; n > 0 {
			e.log.Info("known connections of sites to closed endpoints are deleted", "number", n)
		}

		again = nil
		if n > 0 || failed {
			again = time.After(max(time.Since(began), endEvery))
		} else if dirty {
			again, dirty = time.After(settle), false
		}
	}
}

// once reads the known connections and deletes those that are not open, up to mostFound. It returns
// their number.
func (e *ender) once() (n int, err error) {
	if e.conn == nil {
		if e.conn, err = nfnl.Open(); err != nil {
			return 0, err
		}
	}
	defer func() {
		if err != nil { // The socket may hold answers that were not read.
			err = errors.Join(err, e.close())
		}
	}()

	found, err := nl.FindSome(e.conn, mostFound, e.closed)
	if err != nil {
		return 0, err
	}
	for found.Len() > 0 {
		piece := found.Cut(mostPiece)
		piece.Keep(e.closed) // Its endpoint may be open again.
		deleted, err := piece.Delete()
		n += deleted
		e.ended.Add(uint64(deleted))
		if err != nil {
			return n, err
		}
	}
	return n, nil
}

func (e *ender) close() error {
	if e.conn == nil {
		return nil
	}
	c := e.conn
	e.conn = nil
	return c.Close()
}

// closed reports whether a site opened the connection to a pod's address, and the guard would not
// let it open another one.
func (e *ender) closed(c nl.Connection) bool {
	if !cluster.InRanges(e.pods, c.Server) {
		return false
	}
	i := slices.IndexFunc(e.sites, func(s cluster.Site) bool {
		return cluster.InRanges(s.PodRanges, c.Client) || cluster.InRanges(s.NodeRanges, c.Client)
	})
	if i < 0 {
		return false
	}

	o := cluster.Opening{Site: e.sites[i].Name, Protocol: c.Proto,
		Endpoint: netip.AddrPortFrom(c.Server, c.Port)}
	e.mu.Lock()
	defer e.mu.Unlock()
	_, open := slices.BinarySearchFunc(e.open, o, cluster.Opening.Compare)
	return e.known && !open
}
