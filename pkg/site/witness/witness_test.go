package witness

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/cluster"
	"github.com/kubeveil/kubeveil/pkg/config"
	"github.com/kubeveil/kubeveil/pkg/feature"
	"github.com/kubeveil/kubeveil/pkg/telemetry"
)

// newFeature returns a Feature with the imported site b and the site c, a clock, and a count of the
// turns that it requests. Each site has a node.
func newFeature(t *testing.T, proxy string) (f *Feature, now *time.Time, turns *int) {
	t.Helper()
	turns, now = new(int), new(time.Time)
	*now = time.Unix(1000, 0)
	c := config.Config{ServiceProxy: proxy, Sites: []cluster.Site{
		{Name: "b", Imports: []string{"shop"}}, {Name: "c"}}}
	f = NewFeature(c, func() { *turns++ }, slog.New(slog.DiscardHandler))
	f.socket = fmt.Sprintf("@kubeveil-test/%s/%d", t.Name(), os.Getpid())
	f.now = func() time.Time { return *now }
	errtest.Must(t, f.Turn(feature.Turn{Table: cluster.Table{Peers: []cluster.Node{
		{Name: cluster.SiteNodeName("b", "n"), PodPrefixes: nettest.Prefixes("10.245.1.0/24")},
		{Name: cluster.SiteNodeName("c", "n"), PodPrefixes: nettest.Prefixes("10.246.1.0/24")},
		{Name: "own", PodPrefixes: nettest.Prefixes("10.244.1.0/24")}}},
		Dead: nettest.Prefixes("10.245.1.0/24")}))
	return f, now, turns
}

// Nodes of imported sites are probed while a program of the node asks, and judged after a while.
func TestNodesAreProbedOnRequest(t *testing.T) {
	f, now, turns := newFeature(t, config.ServiceProxyNone)
	if f.Remote() != nil {
		t.Error("nodes are probed before a request")
	}
	run(t, f)
	w := newWatcher(f)
	ask := func() (a Answer) {
		t.Helper()
		nettest.Until(t, 10*time.Second, "veild answers", func() (answers bool) {
			var err error
			a, err = w.ask(t.Context(), w.client())
			return err == nil
		})
		return a
	}

	if a := ask(); a.Judged || len(a.Dead) > 0 || *turns != 1 {
		t.Errorf("first answer %+v, %d turns", a, *turns)
	}
	if got := f.Remote(); !slices.Equal(got, nettest.Addrs("10.245.1.0")) {
		t.Errorf("probed: %v", got)
	}
	*now = now.Add(judgeAfter)
	if a := ask(); !a.Judged || !slices.Equal(a.Dead, nettest.Prefixes("10.245.1.0/24")) ||
		*turns != 1 {
		t.Errorf("after a while %+v, %d turns", a, *turns)
	}
}

// newWatcher returns a Watcher for a Feature.
func newWatcher(f *Feature) *Watcher {
	w := NewWatcher(slog.New(slog.DiscardHandler))
	w.Dial = func(ctx context.Context) (net.Conn, error) { return Dial(ctx, f.socket) }
	return w
}

// run runs a Feature until the test ends.
func run(t *testing.T, f *Feature) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- f.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		errtest.Check(t, <-done)
	})
}

// A veild with its own service table probes nothing for veil-site, and has no socket.
func TestOwnServiceTableJudges(t *testing.T) {
	f, _, _ := newFeature(t, config.ServiceProxyEBPF)
	errtest.Must(t, f.Run(t.Context()))
	if _, err := Dial(t.Context(), f.socket); !errors.Is(err, unix.ECONNREFUSED) ||
		f.Remote() != nil {
		t.Errorf("connect: %v, probed %v", err, f.Remote())
	}
}

// A process that took the socket is shown, and the socket is served once that process has ended.
func TestTakenSocketIsShown(t *testing.T) {
	f, _, _ := newFeature(t, config.ServiceProxyNone)
	f.again = time.Millisecond
	other, err := net.Listen("unix", f.socket)
	errtest.Must(t, err)
	run(t, f)
	problems := func() string {
		var s telemetry.Status
		f.Status(&s)
		return strings.Join(s.Problems, "\n")
	}
	nettest.Until(t, 10*time.Second, "the problem is shown", func() bool {
		return strings.Contains(problems(), "veil-site cannot learn which nodes of sites answer")
	})
	errtest.Must(t, other.Close())
	nettest.Until(t, 10*time.Second, "veild answers", func() bool {
		w := newWatcher(f)
		_, err := w.ask(t.Context(), w.client())
		return err == nil
	})
	if p := problems(); p != "" {
		t.Errorf("then: %s", p)
	}
}

// veild runs as root, so a socket of another user is refused.
func TestSocketOfAnotherUserIsRefused(t *testing.T) {
	socket := fmt.Sprintf("@kubeveil-test/user/%d", os.Getpid())
	// The kernel keeps the user that the thread has as it listens. The thread ends with the
	// goroutine.
	listener := make(chan net.Listener)
	go func() {
		runtime.LockOSThread()
		if _, _, err := syscall.RawSyscall(syscall.SYS_SETRESUID, ^uintptr(0), 65534,
			^uintptr(0)); err != 0 {
			t.Error(err)
		}
		l, err := net.Listen("unix", socket)
		errtest.Check(t, err)
		listener <- l
	}()
	l := <-listener
	defer l.Close()
	if _, err := Dial(t.Context(), socket); err == nil ||
		!strings.Contains(err.Error(), "a process of user 65534 has the socket") {
		t.Error(err)
	}
}

// The last answer counts for a while without a veild, and then no node is dead.
func TestWatcherKeepsTheLastAnswer(t *testing.T) {
	w := NewWatcher(slog.New(slog.DiscardHandler))
	dead, away := nettest.Prefixes("10.245.1.0/24"), errors.New("away")
	begin := time.Unix(1000, 0)
	for _, step := range []struct {
		what    string
		answer  Answer
		err     error
		after   time.Duration
		dead    int
		changed bool
		unknown bool
	}{
		{"at the start", Answer{}, nil, 0, 0, false, false},
		{"a node is dead", Answer{true, dead}, nil, time.Second, 1, true, false},
		{"the same", Answer{true, dead}, nil, 2 * time.Second, 1, false, false},
		{"veild restarts", Answer{}, away, 30 * time.Second, 1, false, false},
		{"it has just begun", Answer{}, nil, 32 * time.Second, 1, false, false},
		{"the node answers", Answer{true, nil}, nil, 40 * time.Second, 0, true, false},
		{"again dead", Answer{true, dead}, nil, 41 * time.Second, 1, true, false},
		{"veild ends", Answer{}, away, 42 * time.Second, 1, false, false},
		{"veild is gone", Answer{}, away, 43*time.Second + keepFor, 0, true, true},
		{"still", Answer{}, away, 44*time.Second + keepFor, 0, false, true},
		{"veild is back", Answer{}, nil, 45*time.Second + keepFor, 0, true, false},
	} {

		w.note(step.answer, step.err, begin.Add(step.after))
		changed := false
		select {
		case <-w.Changed():
			changed = true
		default:
		}
		if len(w.Dead()) != step.dead || changed != step.changed {
			t.Errorf("%s: dead %v, changed %v", step.what, w.Dead(), changed)
		}
		if got := w.Unknown(); (got != "") != step.unknown ||
			step.unknown && !strings.Contains(got, away.Error()) {
			t.Errorf("%s: unknown because %q", step.what, got)
		}
	}
}
