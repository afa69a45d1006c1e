package keeper

import (
	"slices"
	"time"

	"github.com/kubeveil/kubeveil/pkg/policy/nftables"
	"github.com/kubeveil/kubeveil/pkg/policy/planner"
)

// maxTurns bounds the namespaces of which a queue stores the last turn.
const maxTurns = 1024

// lane is a goroutine that makes drafts, one after another. A large draft takes much memory and
// time, so the other drafts have a lane of their own.
type lane int

const (
	mediumLane lane = iota
	largeLane
	lanes
)

func laneOf(d *planner.Draft) lane {
	if d.Large {
		return largeLane
	}
	return mediumLane
}

// queue holds the drafts that are not adopted. In each lane namespaces take turns: next returns the
// draft of the namespace whose last turn is the longest ago. So a namespace waits for one draft of
// each other namespace at most, however often these change. The zero value is empty. The lock of
// received guards it, and the drafts.
type queue struct {
	// waiting is in order of arrival.
	waiting []queued
	// making are the drafts that are being made, by lane. busy reports whether a lane runs.
	making [lanes]queued
	busy   [lanes]bool
	// turns holds the number of the last turn of the namespaces that had one most recently, at most
	// maxTurns, and last is the number of the last turn.
	turns map[string]uint64
	last  uint64
}

// queued is a draft in a queue, and when it was added.
type queued struct {
	*planner.Draft
	since time.Time
}

// add adds drafts, and returns the lanes that have to begin.
func (q *queue) add(drafts []*planner.Draft, now time.Time) (begin []lane) {
	for _, d := range drafts {
		q.waiting = append(q.waiting, queued{d, now})
	}
	for l := range lanes {
		if !q.busy[l] && q.first(l) >= 0 {
			q.busy[l] = true
			begin = append(begin, l)
		}
	}
	return begin
}

// first returns the index of the next draft of a lane, or -1. While the node exceeds its budget, it
// is the draft that reduces the lines.
func (q *queue) first(of lane) int {
	for _, d := range q.making {
		if d.Draft != nil && d.Reduces {
			return -1
		}
	}
	if i := slices.IndexFunc(q.waiting, func(d queued) bool { return d.Reduces }); i >= 0 {
		if laneOf(q.waiting[i].Draft) != of {
			return -1
		}
		return i
	}

	first := -1
	for i, d := range q.waiting {
		if laneOf(d.Draft) == of && (first < 0 ||
			q.turns[d.Namespace] < q.turns[q.waiting[first].Namespace]) {
			first = i
		}
	}
	return first
}

// adopted notes that the draft of a lane was adopted. If it reduced the lines, the other lane can
// begin.
func (q *queue) adopted(of lane) { q.making[of] = queued{} }

// next removes the next draft of a lane. It returns nil if there is none, and the lane then ends.
func (q *queue) next(of lane) *planner.Draft {
	i := q.first(of)
	if i < 0 {
		q.busy[of] = false
		return nil
	}
	d := q.waiting[i]
	q.waiting, q.making[of] = slices.Delete(q.waiting, i, i+1), d

	if q.turns == nil {
		q.turns = map[string]uint64{}
	}
	q.last++
	q.turns[d.Namespace] = q.last
	for len(q.turns) > maxTurns {
		oldest := d.Namespace
		for namespace, turn := range q.turns {
			if turn < q.turns[oldest] {
				oldest = namespace
			}
		}
		delete(q.turns, oldest)
	}
	return d.Draft
}

// count returns the number of drafts and how long the oldest has waited.
func (q *queue) count(now time.Time) (n int, oldest time.Duration) {
	for _, d := range slices.Concat(q.waiting, q.making[:]) {
		if d.Draft != nil {
			n++
			oldest = max(oldest, now.Sub(d.since))
		}
	}
	return n, oldest
}

// makeDrafts adds the planner's new drafts to the queue, which is made beside the loop.
func (k *Keeper) makeDrafts() {
	k.mu.Lock()
	begin := k.queue.add(k.planner.Drafts(), k.now())
	k.mu.Unlock()
	for _, l := range begin {
		k.beside(func() { k.makeLane(l) })
	}
}

// makeLane makes the drafts of a lane. The next step after each brings it in force. After the end
// of Run none is made: the next process plans again.
func (k *Keeper) makeLane(l lane) {
	for {
		k.mu.Lock()
		if k.ending.Load() {
			k.mu.Unlock()
			return
		}
		d := k.queue.next(l)
		if d == nil {
			k.mu.Unlock()
			return
		}
		k.planner.Begin(d)
		k.mu.Unlock()

		d.Make()
		k.own.table.Keep(nftables.Prepare(d.Plan()))

		k.mu.Lock()
		k.planner.Adopt(d)
		k.queue.adopted(l)
		k.adopted = true
		k.mu.Unlock()
		k.loop.Poke()
	}
}
