package conntrack

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/kubeveil/kubeveil/internal/nft"
	"github.com/kubeveil/kubeveil/internal/nl"
)

// tracked reads the table of tracked connections, at most a tenth of the time, by a socket that stays
// open: to close one would hold up transactions of nftables, see nfnl. The zero value is ready.
type tracked struct {
	mu     sync.Mutex
	conn   *nft.Conn // nil until it is needed
	opened map[netip.Addr]int
	// at is the time at which opened was read, and next the time from which it may be read again.
	at, next time.Time
}

// mayRead reports whether the last reading is long enough ago.
func (t *tracked) mayRead(now time.Time) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return !now.Before(t.next)
}

// read returns how many entries each address opened. The map is not changed later.
func (t *tracked) read(now time.Time) (map[netip.Addr]int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.readLocked(now)
}

// recent is read, or what was read less than shownFor ago.
func (t *tracked) recent(now time.Time) (map[netip.Addr]int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.opened != nil && (now.Sub(t.at) < shownFor || now.Before(t.next)) {
		return t.opened, nil
	}
	return t.readLocked(now)
}

func (t *tracked) readLocked(now time.Time) (map[netip.Addr]int, error) {
	began := time.Now()
	opened, err := t.count()
	t.next = now.Add(pauses * time.Since(began))
	if err != nil {
		t.closeLocked()
		return nil, err
	}
	t.opened, t.at = opened, now
	return opened, nil
}

func (t *tracked) count() (map[netip.Addr]int, error) {
	c, err := t.openLocked()
	if err != nil {
		return nil, err
	}
	messages, err := c.Messages()
	if err != nil {
		return nil, err
	}
	var opened map[netip.Addr]int
	err = nl.EachConnection(messages, func() { opened = map[netip.Addr]int{} },
		func(c nl.Connection) { opened[c.Client]++ })
	return opened, err
}

func (t *tracked) openLocked() (c *nft.Conn, err error) {
	if t.conn == nil {
		t.conn, err = nft.Open()
	}
	return t.conn, err
}

// dropped returns what the counter of the limit counted.
func (t *tracked) dropped(limit string) (uint64, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	c, err := t.openLocked()
	if err != nil {
		return 0, err
	}
	counts, err := c.Counters(limit)
	if err != nil {
		t.closeLocked()
	}
	return counts[DropReason], err
}

func (t *tracked) close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closeLocked()
}

func (t *tracked) closeLocked() {
	if t.conn != nil {
		_ = t.conn.Close()
		t.conn = nil
	}
}

// Opened returns how many entries each pod opened, without pods that opened none, the most first.
// The numbers are at most 10 s old, or as old as it takes to read the table in a tenth of the time.
// Any goroutine in the node's network namespace may call it while Run does.
func (l *Limiter) Opened() ([]Usage, error) {
	if l.Status().Max == 0 {
		return nil, nil // The kernel tracks no connection, or Run has not looked yet.
	}
	pods, err := l.o.Pods()
	if err != nil {
		return nil, err
	}
	opened, err := l.tracked.recent(time.Now())
	if err != nil {
		return nil, err
	}
	entries := map[string]int{}
	for _, p := range pods {
		for _, a := range p.Addrs {
			entries[p.Name] += opened[a]
		}
	}
	maps.DeleteFunc(entries, func(_ string, n int) bool { return n == 0 })

	var all []Usage
	for name, n := range entries {
		all = append(all, Usage{name, n})
	}
	slices.SortFunc(all, func(a, b Usage) int {
		return cmp.Or(cmp.Compare(b.Entries, a.Entries), cmp.Compare(a.Pod, b.Pod))
	})
	return all, nil
}
