package reflector

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
)

func init() {
	// One of client-go's handlers compares the real time of its start with the clock of a bubble.
	utilruntime.ErrorHandlers = nil
}

// server counts requests, and has watches that a test ends.
type server struct {
	mu                    sync.Mutex
	revision              int
	away                  bool
	lists, watches, heads int
	tries                 int // lists that were asked for, also while it was away
	watch                 *watch.FakeWatcher
	timeout               time.Duration
	reports               []error
}

var errAway = errors.New("connection refused")

func (s *server) list(_ context.Context, o metav1.ListOptions) (runtime.Object, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tries++
	if s.away {
		return nil, errAway
	}
	if o.ResourceVersion == "0" {
		return nil, errors.New("any cache would do")
	}
	s.lists++
	return &metav1.PartialObjectMetadataList{
		ListMeta: metav1.ListMeta{ResourceVersion: strconv.Itoa(s.revision)}}, nil
}

func (s *server) open(_ context.Context, o metav1.ListOptions) (watch.Interface, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if o.SendInitialEvents != nil {
		return nil, apierrors.NewInvalid(schema.GroupKind{}, "", nil)
	}
	if s.away {
		return nil, errAway
	}
	s.watches++
	s.timeout = time.Duration(*o.TimeoutSeconds) * time.Second
	s.watch = watch.NewFake()
	return s.watch, nil
}

func (s *server) head(context.Context) (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.away {
		return "", errAway
	}
	s.heads++
	return strconv.Itoa(s.revision), nil
}

func (s *server) do(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

// run keeps a store like the server until the test ends.
func run(t *testing.T, s *server) *Reflector {
	t.Helper()
	r := &Reflector{Name: "things", Object: &metav1.PartialObjectMetadata{}, List: s.list,
		Watch: s.open, Head: s.head, Report: func(err error) {
			s.do(func() { s.reports = append(s.reports, err) })
		}}
	ctx, cancel := context.WithCancel(klog.NewContext(t.Context(), klog.Logger{}))
	done := make(chan struct{})
	go func() {
		defer close(done)
		r.Run(ctx, cache.NewStore(cache.MetaNamespaceKeyFunc))
	}()
	t.Cleanup(func() { cancel(); <-done })
	synctest.Wait()
	return r
}

// asked fails the test unless the server has received these numbers of requests.
func (s *server) asked(t *testing.T, what string, lists, watches, heads int) {
	t.Helper()
	synctest.Wait()
	s.do(func() {
		if s.lists != lists || s.watches != watches || s.heads != heads {
			t.Errorf("%s: %d lists, %d watches, %d heads, want %d, %d, %d", what, s.lists, s.watches,
				s.heads, lists, watches, heads)
		}
	})
}

func TestWatchGoesOnOnlyWhereEtcdStillIs(t *testing.T) {
	for situation, tc := range map[string]struct {
		lasts                 func(timeout time.Duration) time.Duration
		away                  time.Duration
		revision              int
		lists, watches, heads int
	}{
		"ended after its time": {func(d time.Duration) time.Duration { return d }, 0, 7, 1, 2, 0},
		"broke":                {func(d time.Duration) time.Duration { return d / 2 }, 0, 9, 1, 2, 1},
		"broke, etcd has the same revision": {
			func(d time.Duration) time.Duration { return d / 2 }, 0, 7, 1, 2, 1},
		"broke, etcd was restored": {
			func(d time.Duration) time.Duration { return d / 2 }, 0, 6, 2, 2, 1},
		"ended after its time, the server went away": {
			// One before a streaming list, which is refused, and one before the plain list.
			func(d time.Duration) time.Duration { return d }, 20 * time.Second, 9, 2, 2, 2},
		"away for long, the revision was reached again": {
			func(d time.Duration) time.Duration { return d / 2 }, 2 * time.Minute, 9, 2, 2, 0},
	} {
		t.Run(situation, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &server{revision: 7}
				run(t, s)
				s.asked(t, "first", 1, 1, 0)
				time.Sleep(tc.lasts(s.timeout))
				s.do(func() { s.revision, s.away = tc.revision, tc.away > 0 })
				s.watch.Stop()
				time.Sleep(tc.away)
				s.do(func() { s.away = false })
				time.Sleep(time.Minute)
				s.asked(t, "then", tc.lists, tc.watches, tc.heads)
				s.do(func() {
					if last := s.reports[len(s.reports)-1]; last != nil {
						t.Errorf("the last report is %v", last)
					}
				})
			})
		})
	}
}

func TestRestoreIsReportedUntilAllIsReadAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{revision: 7}
		run(t, s)
		time.Sleep(time.Second)
		s.do(func() { s.revision = 5 })
		s.watch.Stop()
		synctest.Wait()
		s.do(func() {
			var back *WentBackError
			if last := s.reports[len(s.reports)-1]; !errors.As(last, &back) ||
				*back != (WentBackError{Known: "7", Head: "5"}) {
				t.Errorf("report %v", last)
			}
		})
		time.Sleep(defaultPause)
		s.asked(t, "read again", 2, 2, 1)
		s.do(func() {
			if last := s.reports[len(s.reports)-1]; last != nil {
				t.Errorf("report %v after the list", last)
			}
		})
	})
}

// If servers disagree, or if a caller requests lists repeatedly, there is at most one list per
// Pause.
func TestListsAgainHaveAPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{revision: 7}
		r := run(t, s)
		for range 100 {
			time.Sleep(100 * time.Millisecond)
			r.ReadAgain()
		}
		synctest.Wait()
		s.do(func() {
			if s.lists != 3 {
				t.Errorf("%d lists in 10 s, want the first and one each 5 s", s.lists)
			}
		})
	})
}

func TestRevisionsThatCannotBeComparedCountAsOlder(t *testing.T) {
	for _, tc := range []struct {
		a, b string
		want bool
	}{{"9", "10", true}, {"10", "9", false}, {"9", "9", false}, {"", "9", true}, {"x", "9", true}} {
		if got := Older(tc.a, tc.b); got != tc.want {
			t.Errorf("Older(%q, %q) = %t", tc.a, tc.b, got)
		}
	}
}

// count reads a counter.
func (s *server) count(n *int) (count int) {
	s.do(func() { count = *n })
	return count
}

// breakWatch ends the watch as client-go does when the connection was aborted.
func (s *server) breakWatch() {
	reporter := apierrors.NewClientErrorReporter(500, "GET", "ClientWatchDecoding")
	s.watch.Error(reporter.AsObject(errors.New("software caused connection abort")))
}

// If the connection breaks repeatedly, no list is requested, and the watch continues soon each
// time, because new pods wait for it.
func TestWatchThatBreaksAgainAndAgainGoesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{revision: 7}
		run(t, s)
		s.asked(t, "first", 1, 1, 0)
		for i := range 20 {
			time.Sleep(time.Second)
			broke := time.Now()
			s.breakWatch()
			synctest.Wait()
			for s.count(&s.watches) == i+1 && time.Since(broke) < time.Minute {
				time.Sleep(10 * time.Millisecond)
				synctest.Wait()
			}
			took := time.Since(broke)
			if most := defaultPause; took > most || i == 0 && took > 0 {
				t.Errorf("break %d: the watch went on after %v, want %v at most", i+1, took, most)
			}
		}
		// One list when it has broken for a minute.
		synctest.Wait()
		s.do(func() {
			if s.lists > 3 {
				t.Errorf("%d lists, want no more than one a minute", s.lists)
			}
			if last := s.reports[len(s.reports)-1]; last != nil {
				t.Errorf("the last report is %v", last)
			}
		})
	})
}

// While a server fails, it gets a request for a list at most every 3 s. When it works again, the
// reflector notices within 6 s.
func TestServerThatFailsIsAskedSeldomAndFoundSoon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{revision: 7, away: true}
		run(t, s)
		time.Sleep(10 * time.Second) // the first pauses are shorter
		synctest.Wait()
		before := s.count(&s.tries)
		time.Sleep(100 * time.Second)
		synctest.Wait()
		if n := s.count(&s.tries) - before; n > 100/3+1 {
			t.Errorf("%d lists in 100 s, want one each 3 s at most", n)
		}

		s.do(func() { s.away = false })
		back := time.Now()
		for s.count(&s.lists) == 0 && time.Since(back) < time.Minute {
			time.Sleep(10 * time.Millisecond)
			synctest.Wait()
		}
		if took := time.Since(back); took > 6*time.Second {
			t.Errorf("a list came %v after the server was back", took)
		}
	})
}
