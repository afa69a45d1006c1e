package reflector

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
)

const (
	// defaultPause is the least time between the beginnings of two rounds.
	defaultPause = 5 * time.Second
	// maxBreak bounds the time for which a watch may be broken and still go on where it was.
	// Meanwhile a restored etcd may have reached the known revision, and is then indistinguishable
	// from the former one.
	maxBreak = time.Minute
)

// defaultBackoff is between requests that fail: 0.5 to 1 s at first, 3 to 6 s from the fourth on.
// So a node requests a list of one kind at most every 3 s while the API server fails. It finds a
// server that returns within 6 s.
var defaultBackoff = wait.Backoff{Duration: 500 * time.Millisecond, Cap: 3 * time.Second, Factor: 2,
	Steps: 16, Jitter: 1}

// Reflector reads one kind of object. Its fields are set before Run; Relist, Client, Backoff and Pause
// may be zero. ReadAgain may be called at any time from any goroutine.
type Reflector struct {
	// Name is the plural resource.
	Name string
	// Object has the type of the objects.
	Object runtime.Object
	// List and Watch ask the API server.
	List  func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error)
	Watch func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error)
	// Head returns the revision of etcd now. It is the revision of a list with the limit 1 and no
	// revision, which the API server answers by a quorum read.
	Head func(ctx context.Context) (revision string, err error)
	// Report receives the error of each request that failed, and nil when the store is like the
	// server again: a list was read, or a watch goes on.
	Report func(err error)
	// Relist, if not nil, is called when a watch that failed could go on. If it returns true, all is
	// listed instead, so that Report(nil) means that the store has what the server has.
	Relist func() bool
	// Client, if not nil, reports by its methods that it supports no streaming lists (see cache).
	Client any
	// Backoff is between requests that fail; nil means 0.5 to 1 s at first, up to 3 to 6 s.
	Backoff *wait.Backoff
	// Pause is the least time between the beginnings of two rounds; 0 means 5 s. A watch that broke
	// goes on at once, and one that breaks again half of Pause to Pause later.
	Pause time.Duration

	mu sync.Mutex
	// end ends the present round; nil before the first.
	end context.CancelFunc
}

// WentBackError reports that etcd has a lower revision than one that it had: it was restored.
type WentBackError struct{ Known, Head string }

func (e *WentBackError) Error() string {
	return fmt.Sprintf("the API server's data went back from revision %s to %s, as after a restore "+
		"of etcd: all is read again", e.Known, e.Head)
}

// errAgain ends a round, in which client-go remembers a revision.
var errAgain = errors.New("what is known may not be what etcd has: all is read again")

// Run keeps store like the API server's list, until ctx ends. While the server is away the store
// stays as it is.
func (r *Reflector) Run(ctx context.Context, store cache.ReflectorStore) {
	for ctx.Err() == nil {
		least := time.NewTimer(r.pause())
		r.round(ctx, store)
		select {
		case <-ctx.Done():
		case <-least.C:
		}
		least.Stop()
	}
}

func (r *Reflector) pause() time.Duration {
	if r.Pause == 0 {
		return defaultPause
	}
	return r.Pause
}

// ReadAgain makes Run list all objects by a quorum read, soon, and watch from there.
func (r *Reflector) ReadAgain() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.end != nil {
		r.end()
	}
}

// round runs a client-go reflector, which at first knows no revision, until what it knows may be
// wrong.
func (r *Reflector) round(ctx context.Context, store cache.ReflectorStore) {
	ctx, end := context.WithCancel(ctx)
	defer end()
	r.mu.Lock()
	r.end = end
	r.mu.Unlock()

	d := &round{Reflector: r, end: end}
	var lw cache.ListerWatcher = &cache.ListWatch{ListWithContextFunc: d.list,
		WatchFuncWithContext: d.watch}
	if r.Client != nil {
		lw = cache.ToListWatcherWithWatchListSemantics(lw.(*cache.ListWatch), r.Client)
	}
	backoff := defaultBackoff // a copy: it counts its steps
	if r.Backoff != nil {
		backoff = *r.Backoff
	}
	inner := cache.NewReflectorWithOptions(lw, r.Object, mirror{store, d},
		cache.ReflectorOptions{Name: r.Name, TypeDescription: r.Name, Backoff: &backoff})
	// client-go takes a connection that was reset for the end of a watch, which goes on, and one
	// that was aborted or lost for an internal error, after which it waits and lists all again.
	inner.MaxInternalErrorRetryDuration = maxBreak
	inner.RunWithContext(ctx)
}

// round holds the state since a list without a revision. Its requests are made one after the other.
type round struct {
	*Reflector
	end context.CancelFunc

	// listed reports whether the last request was a plain list: a watch goes on from there.
	listed bool
	// ends is when the last watch is over by itself.
	ends time.Time
	// broken is when the first of the requests failed that all failed since; zero when none did.
	broken time.Time
	// resumed is when a watch last went on, or tried to, before its time was over.
	resumed time.Time
}

func (d *round) list(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
	switch o.ResourceVersion {
	case "0":
		o.ResourceVersion = "" // "0" would accept the content of any cache, however old
	case "":
	default:
		if err := d.check(ctx, o.ResourceVersion); err != nil {
			return nil, err
		}
	}
	list, err := d.List(ctx, o)
	if d.listed = err == nil; err != nil {
		d.failed(err)
	}
	return list, err
}

func (d *round) watch(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	streams := o.SendInitialEvents != nil
	usual := !streams && (d.listed || d.broken.IsZero() && !time.Now().Before(d.ends))
	d.listed = false
	if o.ResourceVersion != "" && !usual {
		if !streams { // that one has waited for the back-off
			if err := d.space(ctx); err != nil {
				return nil, err
			}
		}
		if err := d.check(ctx, o.ResourceVersion); err != nil {
			return nil, err
		}
	}

	w, err := d.Watch(ctx, o)
	switch {
	case err == nil && streams: // the store is like the server once all was sent
	case err == nil:
		d.restored()
	case streams && apierrors.IsInvalid(err):
		// The next request to a server without streaming lists is for a plain list.
	default:
		d.failed(err)
	}
	if o.TimeoutSeconds != nil {
		d.ends = time.Now().Add(time.Duration(*o.TimeoutSeconds) * time.Second)
	}
	return w, err
}

// space waits where the watch broke a moment ago, too: half of Pause to Pause after it last went
// on.
func (d *round) space(ctx context.Context) error {
	half := d.pause() / 2
	due := time.NewTimer(time.Until(d.resumed.Add(half + rand.N(max(half, 1)))))
	defer due.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-due.C:
	}
	d.resumed = time.Now()
	return nil
}

// check returns an error unless what is known by revision is still what etcd had.
func (d *round) check(ctx context.Context, known string) error {
	if !d.broken.IsZero() && (time.Since(d.broken) > maxBreak || d.Relist != nil && d.Relist()) {
		d.end()
		return errAgain
	}
	head, err := d.Head(ctx)
	switch {
	case err != nil:
		d.failed(err)
		return err
	case Older(head, known):
		err = &WentBackError{Known: known, Head: head}
		d.failed(err)
		d.end()
		return err
	}
	return nil
}

// Older reports whether revision a is lower than b, or they cannot be compared.
func Older(a, b string) bool {
	m, err := strconv.ParseUint(a, 10, 64)
	n, err2 := strconv.ParseUint(b, 10, 64)
	return err != nil || err2 != nil || m < n
}

func (d *round) failed(err error) {
	if d.broken.IsZero() {
		d.broken = time.Now()
	}
	d.Report(err)
}

func (d *round) restored() {
	d.broken = time.Time{}
	d.Report(nil)
}

// mirror passes all on to a store and notes when a list was read.
type mirror struct {
	cache.ReflectorStore
	round *round
}

var _ cache.TransformingStore = mirror{}

// Replace takes a complete list.
func (m mirror) Replace(list []any, revision string) error {
	if err := m.ReflectorStore.Replace(list, revision); err != nil {
		return err
	}
	m.round.restored()
	return nil
}

// Transformer returns the transform of the store, or nil if it has none.
func (m mirror) Transformer() cache.TransformFunc {
	if t, ok := m.ReflectorStore.(cache.TransformingStore); ok {
		return t.Transformer()
	}
	return nil
}
