package nftables

import (
	"slices"
	"time"

	"github.com/kubeveil/kubeveil/internal/nfnl"
	"github.com/kubeveil/kubeveil/pkg/policy/nftables/message"
	"github.com/kubeveil/kubeveil/pkg/policy/nftables/sets"
)

// The kernel holds the lock of nftables for a whole transaction. All other programs that change
// rules on the node wait: an ADD of a pod, the guard, kube-proxy. So new sets with many elements
// are made before the transaction that refers to them, a slice at a time. Packets see the old plan
// until that transaction. If the daemon dies before that transaction, unused sets remain. The next
// daemon completes or deletes them.

const (
	// sliceElements bounds the elements of a slice.
	sliceElements = 2048
	// SlicePause is the pause between two slices. A process that waits can then go ahead, and a DEL
	// that reads the table without a lock finds it unchanged for a moment.
	SlicePause = 10 * time.Millisecond
)

// prepareLocked makes the new sets of a difference if they have more elements together than a
// slice, and removes them from the difference. It returns the number of sets that it made.
func (t *PolicyTable) prepareLocked(c *nfnl.Conn, d *difference, want *content) (made int,
	err error) {
	total := 0
	for _, name := range d.addSets {
		for _, part := range want.sets[name].Elements {
			total += len(part)
		}
	}
	if d.anew || total <= sliceElements {
		return 0, nil
	}

	var tx message.Transaction
	room := sliceElements
	flush := func() error {
		if err := t.commitLocked(c, &tx); err != nil {
			return err
		}
		tx.Reset()
		room = sliceElements
		if t.afterSlice != nil {
			if err := t.afterSlice(); err != nil {
				return err
			}
		}
		time.Sleep(SlicePause)
		return nil
	}
	for _, name := range d.addSets {
		s := want.sets[name]
		tx.AddSet(ourTable.Name, name, s)
		for keys := missing(s.Elements, nil); len(keys) > 0; {
			n := cut(s, keys, room)
			tx.AddElements(ourTable.Name, name, keys[:n])
			keys, room = keys[n:], room-n
			if room <= 0 {
				if err := flush(); err != nil {
					return 0, err
				}
			}
		}
	}
	if tx.Len() > 0 {
		err = flush()
	}

	for _, name := range d.addSets {
		t.have.sets[name] = want.sets[name].Elements
	}
	made, d.addSets = len(d.addSets), nil
	return made, err
}

// cut returns where to cut the sorted keys of the set, at room or a little later. It never cuts an
// interval, since the kernel refuses elements that follow a start without its end.
func cut(s *sets.Set, keys []string, room int) int {
	n := min(room, len(keys))
	if !s.Interval || s.Concat {
		return n
	}
	if i := slices.IndexFunc(keys[n-1:], func(k string) bool { return k[0] == 1 }); i >= 0 {
		return n + i
	}
	return len(keys)
}
