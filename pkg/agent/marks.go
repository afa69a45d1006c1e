package agent

import (
	"fmt"
	"sync"
	"time"
)

// marksShown is for how long status shows a problem with marks after the last that was restored.
const marksShown = 10 * time.Minute

// lostMarks notes when the guard last restored marks. Its zero value is ready for use, by any goroutine.
type lostMarks struct {
	mu       sync.Mutex // guards what follows
	restored uint64
	at       time.Time
}

// problem returns a sentence while the count of restored marks rises or rose lately, else "".
func (l *lostMarks) problem(restored uint64, now time.Time) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	if restored > l.restored {
		l.at = now
	}
	l.restored = restored
	if l.at.IsZero() || now.Sub(l.at) > marksShown {
		return ""
	}
	return fmt.Sprintf("another program overwrites the marks of pods' packets (%d restored): find the "+
		"rule with nft list ruleset or iptables-save -t mangle and exclude links of the groups of pods "+
		"and tunnels, or let it change only the bits of its own mark", restored)
}
