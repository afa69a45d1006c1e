package link

import (
	"context"
	"sync"
	"time"

	"github.com/kubeveil/kubeveil/internal/poll"
)

// lateMax bounds the links that wait at once. Further links do not wait.
const lateMax = 4096

// lateLink is a link that gets its programs later, or that is checked again later.
type lateLink struct {
	index int
	due   time.Time
}

// lateLinks is a queue of links, in which each link is once at most, however often it changes or
// fails. Make one with newLateLinks. add may be called concurrently with the only caller of next.
type lateLinks struct {
	patience time.Duration
	queue    chan lateLink

	mu sync.Mutex
	// due is when the last call of add for each link in the queue is due, by index.
	due map[int]time.Time
}

func newLateLinks(patience time.Duration) *lateLinks {
	return &lateLinks{patience: patience, queue: make(chan lateLink, lateMax),
		due: map[int]time.Time{}}
}

// add makes next return a link once patience is over. It returns false if too many links wait.
func (q *lateLinks) add(index int) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	due := time.Now().Add(q.patience)
	if _, waits := q.due[index]; !waits {
		if len(q.due) == lateMax {
			return false
		}
		q.queue <- lateLink{index, due}
	}
	q.due[index] = due
	return true
}

// next waits for the link that was added first and is due. ok is false if ctx ended.
func (q *lateLinks) next(ctx context.Context) (index int, ok bool) {
	var l lateLink
	select {
	case <-ctx.Done():
		return 0, false
	case l = <-q.queue:
	}
	if poll.Pause(ctx, time.Until(l.due)) != nil {
		return 0, false
	}
	q.taken(l)
	return l.index, true
}

// taken removes a link that left the queue. If it changed since it was added, it is added again,
// because plugins may finish it later: a link that changes all the time is due every patience.
func (q *lateLinks) taken(l lateLink) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if due := q.due[l.index]; due.After(l.due) {
		q.queue <- lateLink{l.index, due}
		return
	}
	delete(q.due, l.index)
}
