package client

import (
	"context"
	"fmt"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"
	"k8s.io/klog/v2"
)

const (
	// KindWatch is the kind of clients that watch the written object. Each watch resumes at the
	// last version that it saw, by client-go's RetryWatcher.
	KindWatch = "watch"

	// Watchers is the number of watches in a process.
	Watchers = 4
	// WritePeriod is the time between two writes of the object.
	WritePeriod = 100 * time.Millisecond
)

// The written object is a ConfigMap that Write updates while servers fail. Its data has a number
// that grows by one with each write, and the time of the write in nanoseconds since 1970.
const (
	writtenNamespace, writtenName = "default", "bench"
	keyNumber, keyAt              = "number", "at"
)

// watched is the state of one watch.
type watched struct {
	held *held
	// last is the number in the last version that the watch saw; 0 before the first version.
	last int
	// open reports whether an event came, served whether an event of a write after the mark came.
	open, served bool
}

// watch follows the written object until ctx is done.
func (h *held) watch(ctx context.Context, c kubernetes.Interface) {
	// client-go must not log errors into the output of this process. They are counted instead.
	ctx = klog.NewContext(ctx, klog.Logger{})
	w := &watched{held: h}
	for ctx.Err() == nil {
		w.follow(ctx, c.CoreV1().ConfigMaps(writtenNamespace))
		select {
		case <-ctx.Done():
		case <-time.After(h.period):
		}
	}
}

// follow reads the object and watches it from that version on. It returns when the watch ends, for
// example because the server no longer has the versions after the last one seen.
func (w *watched) follow(ctx context.Context, maps typedcorev1.ConfigMapInterface) {
	m, err := maps.Get(ctx, writtenName, metav1.GetOptions{})
	if err != nil {
		return // watch calls follow again
	}
	w.note(m)
	from := &cache.ListWatch{WatchFuncWithContext: func(ctx context.Context,
		o metav1.ListOptions) (watch.Interface, error) {
		o.FieldSelector = "metadata.name=" + writtenName
		return maps.Watch(ctx, o)
	}}
	events, err := watchtools.NewRetryWatcherWithContext(ctx, m.ResourceVersion, from)
	if err != nil {
		return
	}
	for e := range events.ResultChan() {
		if m, ok := e.Object.(*corev1.ConfigMap); ok {
			w.see(m)
		}
	}
	<-events.Done()
}

// note records a version that was read by a GET, not by an event.
func (w *watched) note(m *corev1.ConfigMap) {
	number, _ := strconv.Atoi(m.Data[keyNumber])
	w.held.mu.Lock()
	defer w.held.mu.Unlock()
	w.numberLocked(number)
}

// see records the version of an event.
func (w *watched) see(m *corev1.ConfigMap) {
	number, _ := strconv.Atoi(m.Data[keyNumber])
	at, _ := strconv.ParseInt(m.Data[keyAt], 10, 64)

	w.held.mu.Lock()
	defer w.held.mu.Unlock()
	if !w.open {
		w.open = true
		w.held.openLocked()
	}
	w.numberLocked(number)
	if !w.served && !w.held.marked.IsZero() && time.Unix(0, at).After(w.held.marked) {
		w.served = true
		w.held.serveLocked(KindWatch)
	}
}

// numberLocked records the number of a version, and counts the versions between it and the last one
// as missed.
func (w *watched) numberLocked(number int) {
	if w.last > 0 {
		w.held.tally.Missed += max(0, number-w.last-1)
	}
	w.last = max(w.last, number)
}

// Write updates the object every WritePeriod until ctx is done, and then returns nil. It creates
// the object if that is missing.
func Write(ctx context.Context, c kubernetes.Interface) error {
	maps := c.CoreV1().ConfigMaps(writtenNamespace)
	m, err := maps.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: writtenName}},
		metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		m, err = maps.Get(ctx, writtenName, metav1.GetOptions{})
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", writtenName, err)
	}

	tick := time.NewTicker(WritePeriod)
	defer tick.Stop()
	number, _ := strconv.Atoi(m.Data[keyNumber])
	for {
		number++
		m.Data = map[string]string{keyNumber: strconv.Itoa(number),
			keyAt: strconv.FormatInt(time.Now().UnixNano(), 10)}
		m, err = maps.Update(ctx, m, metav1.UpdateOptions{})
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			return fmt.Errorf("write %s: %w", writtenName, err)
		}

		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}
