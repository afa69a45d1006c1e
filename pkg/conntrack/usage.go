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

// tracked reads the table of tracked connections, for at most a tenth of the time. Its socket stays
// open, because closing a socket would delay nftables transactions (see package nfnl). The zero
// value is ready for use.
type tracked struct {
	mu   sync.Mutex
	conn *nft.Conn // nil until it is needed
	// opened is the result of the last reading: the number of entries that each address opened.
	opened map[netip.Addr]int
	// at is the time of the last reading, and next the earliest time of the next one.
	at, next time.Time
}

// mayRead reports whether the pause after the last reading is over.
func (t *tracked) mayRead(now time.Time) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return !now.Before(t.next)
}

// read reads the table and returns how many entries each address opened. The map is not changed
// later.
func (t *tracked) read(now time.Time) (map[netip.Addr]int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.readLocked(now)
}

// recent returns the last result if it is younger than shownFor or the table may not be read yet.
// Otherwise it reads the table.
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

// dropped returns the counters of the nftables table called limit.
func (t *tracked) dropped(limit string) (map[string]uint64, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	c, err := t.openLocked()
	if err != nil {
		return nil, err
	}
	counts, err := c.Counters(limit)
	if err != nil {
		t.closeLocked()
	}
	return counts, err
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

// Opened returns how many entries each pod opened, sorted from most to least. Pods without entries
// are left out. The numbers are at most 10 s old, or older if reading the table takes longer than
// 1 s. Any goroutine in the node's network namespace may call it, also during Run.
func (l *Limiter) Opened() ([]Usage, error) {
	if l.Status().Max == 0 {
		return nil, nil // The kernel tracks no connections, or Run has not read the table size yet.
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
