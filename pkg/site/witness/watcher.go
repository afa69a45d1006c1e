package witness

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/kubeveil/kubeveil/internal/poll"
)

const (
	// askEvery is the interval of questions, and askLimit the longest wait for an answer.
	askEvery, askLimit = 2 * time.Second, 5 * time.Second
	// keepFor is the time for which the last answer counts: a veild starts again within it.
	keepFor = time.Minute
	// maxAnswer bounds the size of an answer: 8 sites have 40,000 pod prefixes at most.
	maxAnswer = 4 << 20
)

// Watcher keeps what the veild of this node answers. Make it with NewWatcher, and call Run. The zero
// Watcher counts no node as dead.
type Watcher struct {
	// Dial connects to veild. NewWatcher sets it. Set another one before Run.
	Dial func(context.Context) (net.Conn, error)

	log     *slog.Logger
	changed chan struct{}
	// problem is the last error that was logged, or "". Only Run uses it.
	problem string

	mu    sync.Mutex
	dead  []netip.Prefix
	heard time.Time // of the last answer that judged
	// failing is the time of the first of the last requests, all of which failed. It is zero after
	// an answer. unknown is the problem of those that fail for longer than keepFor, or "".
	failing time.Time
	unknown string
}

// NewWatcher returns a Watcher that asks the veild of this network namespace.
func NewWatcher(log *slog.Logger) *Watcher {
	return &Watcher{log: log, changed: make(chan struct{}, 1),
		Dial: func(ctx context.Context) (net.Conn, error) { return Dial(ctx, Socket) }}
}

// Changed returns a channel that receives a value after the result of Dead or Unknown has changed.
func (w *Watcher) Changed() <-chan struct{} { return w.changed }

// Dead returns the pod prefixes of nodes that do not answer, sorted. The caller must not change
// them.
func (w *Watcher) Dead() []netip.Prefix {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.dead
}

// Waiting reports whether no veild has judged yet since the start, and the time for which an answer
// counts has not passed.
func (w *Watcher) Waiting() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.heard.IsZero() && w.unknown == ""
}

// Unknown returns why it is not known which nodes answer, or "". A veild that starts again does not
// count.
func (w *Watcher) Unknown() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.unknown
}

// Run asks until ctx ends.
func (w *Watcher) Run(ctx context.Context) {
	client := w.client()
	_ = poll.Each(ctx, askEvery, func(now time.Time) { // Only the end of ctx ends it.
		a, err := w.ask(ctx, client)
		if ctx.Err() == nil {
			w.note(a, err, now)
		}
	})
}

// client returns a client for w.Dial.
func (w *Watcher) client() *http.Client {
	return &http.Client{Timeout: askLimit, Transport: &http.Transport{DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return w.Dial(ctx) }}}
}

// ask sends a request.
func (w *Watcher) ask(ctx context.Context, client *http.Client) (a Answer, err error) {
	q, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://veild"+Path, nil)
	if err != nil {
		return a, err
	}
	r, err := client.Do(q)
	if err != nil {
		return a, errors.Unwrap(err) // without the URL
	}
	defer r.Body.Close()
	body, err := io.ReadAll(io.LimitReader(r.Body, maxAnswer))
	if err != nil {
		return a, err
	}
	if r.StatusCode != http.StatusOK {
		return a, fmt.Errorf("veild: %s: %.200s", r.Status, strings.TrimSpace(string(body)))
	}
	if err := json.Unmarshal(body, &a); err != nil {
		return a, fmt.Errorf("veild: %w", err)
	}
	return a, nil
}

// note keeps an answer, or the last one for a while if there is none.
func (w *Watcher) note(a Answer, err error, now time.Time) {
	problem := ""
	if err != nil {
		problem = err.Error()
	}
	if problem != "" && w.problem == "" {
		w.log.Warn("the veild of this node does not report which nodes of sites answer; their "+
			"endpoints count as reachable", "problem", problem)
	}
	w.problem = problem

	w.mu.Lock()
	unknown := ""
	if err == nil {
		w.failing = time.Time{}
	} else if w.failing.IsZero() {
		w.failing = now
	}
	if err != nil && now.Sub(w.failing) > keepFor {
		unknown = "the veild beside veil-site does not report which nodes of sites answer, so " +
			"endpoints of dead nodes stay in use: " + problem
	}
	next := w.dead
	if err == nil && a.Judged {
		next, w.heard = a.Dead, now
	} else if now.Sub(w.heard) > keepFor {
		next = nil
	}
	changed, other := !slices.Equal(next, w.dead), unknown != w.unknown
	w.dead, w.unknown = next, unknown
	w.mu.Unlock()
	if changed {
		w.log.Info("nodes of sites stopped or began to answer", "silentPrefixes", len(next))
	} else if !other {
		return
	}
	select {
	case w.changed <- struct{}{}:
	default:
	}
}
