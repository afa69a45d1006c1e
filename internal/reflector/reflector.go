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
	// defaultPause is the shortest time between the beginnings of two rounds.
	defaultPause = 5 * time.Second
	// maxBreak is the longest time for which a watch may be broken and still continue at its
	// revision. After a longer time, a restored etcd may have reached the known revision, and then
	// cannot be distinguished from the former one.
	maxBreak = time.Minute
)

// defaultBackoff is the pause after a failed request: 0.5 to 1 s at first, 3 to 6 s from the fourth
// on. So while the API server fails, a node requests a list of one kind at most every 3 s, and it
// notices within 6 s that the server works again.
var defaultBackoff = wait.Backoff{Duration: 500 * time.Millisecond, Cap: 3 * time.Second, Factor: 2,
	Steps: 16, Jitter: 1}

// Reflector reads one kind of object. Its fields are set before Run; Relist, Client, Backoff and
// Pause may be zero. ReadAgain may be called at any time from any goroutine.
type Reflector struct {
	// Name is the plural resource.
	Name string
	// Object has the type of the objects.
	Object runtime.Object
	// List and Watch send requests to the API server.
	List  func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error)
	Watch func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error)
	// Head returns the present revision of etcd. It must be the revision of a list with limit 1 and
	// without a revision, which the API server answers by a quorum read.
	Head func(ctx context.Context) (revision string, err error)
	// Report is called with the error of each failed request. It is called with nil when the store
	// follows the server again, because a list was read or a watch continues.
	Report func(err error)
	// Relist is called when a watch that failed could continue. If it returns true, all objects are
	// listed instead, so that the store is equal to the server at the next Report(nil). If it is
	// nil, the watch continues.
	Relist func() bool
	// Client is the client of List and Watch. Package cache checks by its methods whether it
	// supports streaming lists. A nil Client means that streaming lists are supported.
	Client any
	// Backoff is the pause after a failed request. Nil means 0.5 to 1 s at first, up to 3 to 6 s.
	Backoff *wait.Backoff
	// Pause is the shortest time between the beginnings of two rounds. 0 means 5 s. A broken watch
	// continues at once. If it breaks again soon, it continues after a random time between half
	// of Pause and Pause.
	Pause time.Duration

	mu sync.Mutex
	// end ends the present round. It is nil before the first round.
	end context.CancelFunc
}

// WentBackError reports that the revision of etcd, Head, is lower than the revision Known, which
// was read before. That means that etcd was restored.
type WentBackError struct{ Known, Head string }

func (e *WentBackError) Error() string {
	return fmt.Sprintf("the API server's data went back from revision %s to %s, as after a "+
		"restore of etcd; all objects are read again", e.Known, e.Head)
}

// errAgain is the error of a request that is not sent, because it ends the round.
var errAgain = errors.New("the known objects may differ from etcd; all objects are read again")

// Run keeps store equal to the API server's list until ctx ends. While the server does not answer,
// the store does not change.
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

// ReadAgain makes Run begin another round soon, which lists all objects by a quorum read.
func (r *Reflector) ReadAgain() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.end != nil {
		r.end()
	}
}

// round runs a new client-go reflector, which begins with a list without a revision. It returns
// when ctx ends, when the known revision may not be valid any more, or after ReadAgain.
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
	backoff := defaultBackoff // a copy, because a Backoff counts its steps
	if r.Backoff != nil {
		backoff = *r.Backoff
	}
	inner := cache.NewReflectorWithOptions(lw, r.Object, mirror{store, d},
		cache.ReflectorOptions{Name: r.Name, TypeDescription: r.Name, Backoff: &backoff})
	// client-go continues a watch whose connection was reset. A connection that was aborted or lost
	// is an internal error for client-go, after which it would list all objects. With this setting
	// it retries the watch.
	inner.MaxInternalErrorRetryDuration = maxBreak
	inner.RunWithContext(ctx)
}

// round holds the state of a round, which begins with a list without a revision. client-go makes
// the requests of a round one after another.
type round struct {
	*Reflector
	end context.CancelFunc

	// listed reports whether the last request was a plain list that succeeded. The next watch then
	// continues at the revision of that list.
	listed bool
	// ends is the time at which the server ends the last watch.
	ends time.Time
	// broken is the time of the first failed request since the last success. It is zero if no
	// request failed since.
	broken time.Time
	// resumed is the time at which a broken watch last continued, or tried to.
	resumed time.Time
}

func (d *round) list(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
	switch o.ResourceVersion {
	case "0":
		o.ResourceVersion = "" // "0" would accept the content of any cache, regardless of its age
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
		if !streams { // before a streaming list, client-go has waited for the backoff
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
	case err == nil && streams: // Replace reports the success once all objects were sent
	case err == nil:
		d.restored()
	case streams && apierrors.IsInvalid(err):
		// The server does not support streaming lists, so client-go sends a plain list next.
	default:
		d.failed(err)
	}
	if o.TimeoutSeconds != nil {
		d.ends = time.Now().Add(time.Duration(*o.TimeoutSeconds) * time.Second)
	}
	return w, err
}

// space delays a watch that broke repeatedly. It waits for a random time between half of Pause and
// Pause, which begins when the watch last continued.
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

// check returns an error if a watch must not continue at the revision known, or if that cannot be
// checked.
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

// Older reports whether revision a is lower than b. It also returns true if they cannot be
// compared.
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

// mirror is the store of client-go's reflector. It passes all calls to a store and reports each
// complete list to the round.
type mirror struct {
	cache.ReflectorStore
	round *round
}

var _ cache.TransformingStore = mirror{}

// Replace replaces the content of the store with a complete list.
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
