package witness

import (
	"context"
	"encoding/json"
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

// Watcher keeps what the veild of this node answers. Make it with NewWatcher, and call Run.
type Watcher struct {
	// Transport sends the requests. Nil means a transport of its own. Set it before Run.
	Transport http.RoundTripper

	url     string
	log     *slog.Logger
	changed chan struct{}
	// problem is the last error that was logged, or "". Only Run uses it.
	problem string

	mu    sync.Mutex
	dead  []netip.Prefix
	heard time.Time // of the last answer that judged
}

// NewWatcher returns a Watcher for the veild whose metrics are at an address. "" means that it has
// none; then no node counts as dead.
func NewWatcher(address string, log *slog.Logger) *Watcher {
	w := &Watcher{log: log, changed: make(chan struct{}, 1)}
	if address == "" {
		return w
	}
	host, port, err := net.SplitHostPort(address)
	if a, notAddr := netip.ParseAddr(host); err == nil &&
		(host == "" || notAddr == nil && a.IsUnspecified()) {
		address = net.JoinHostPort("localhost", port)
	}
	w.url = "http://" + address + Path
	return w
}

// Changed returns a channel that receives a value after the result of Dead has changed.
func (w *Watcher) Changed() <-chan struct{} { return w.changed }

// Dead returns the pod prefixes of nodes that do not answer, sorted. The caller must not change
// them.
func (w *Watcher) Dead() []netip.Prefix {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.dead
}

// Run asks until ctx ends.
func (w *Watcher) Run(ctx context.Context) {
	if w.url == "" {
		return
	}
	client := &http.Client{Timeout: askLimit, Transport: w.Transport}
	if client.Transport == nil {
		client.Transport = &http.Transport{MaxIdleConns: 1}
	}
	defer client.CloseIdleConnections()
	_ = poll.Each(ctx, askEvery, func(now time.Time) { // Only the end of ctx ends it.
		a, err := w.ask(ctx, client)
		if ctx.Err() == nil {
			w.note(a, err, now)
		}
	})
}

// ask sends a request.
func (w *Watcher) ask(ctx context.Context, client *http.Client) (a Answer, err error) {
	q, err := http.NewRequestWithContext(ctx, http.MethodGet, w.url, nil)
	if err != nil {
		return a, err
	}
	r, err := client.Do(q)
	if err != nil {
		return a, err
	}
	defer r.Body.Close()
	body, err := io.ReadAll(io.LimitReader(r.Body, maxAnswer))
	if err != nil {
		return a, err
	}
	if r.StatusCode != http.StatusOK {
		return a, fmt.Errorf("veild at %s: %s: %.200s", w.url, r.Status,
			strings.TrimSpace(string(body)))
	}
	if err := json.Unmarshal(body, &a); err != nil {
		return a, fmt.Errorf("veild at %s: %w", w.url, err)
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
	next := w.dead
	if err == nil && a.Judged {
		next, w.heard = a.Dead, now
	} else if now.Sub(w.heard) > keepFor {
		next = nil
	}
	changed := !slices.Equal(next, w.dead)
	w.dead = next
	w.mu.Unlock()
	if !changed {
		return
	}
	w.log.Info("nodes of sites stopped or began to answer", "silentPrefixes", len(next))
	select {
	case w.changed <- struct{}{}:
	default:
	}
}
