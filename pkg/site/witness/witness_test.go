package witness

import (
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"
	"time"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/cluster"
	"github.com/kubeveil/kubeveil/pkg/config"
	"github.com/kubeveil/kubeveil/pkg/feature"
)

// newFeature returns a Feature with the imported site b and the site c, a clock, and a count of the
// turns that it requests. Each site has a node.
func newFeature(t *testing.T, proxy string) (f *Feature, now *time.Time, turns *int) {
	t.Helper()
	turns, now = new(int), new(time.Time)
	*now = time.Unix(1000, 0)
	c := config.Config{ServiceProxy: proxy, Sites: []cluster.Site{
		{Name: "b", Imports: []string{"shop"}}, {Name: "c"}}}
	f = NewFeature(c, func() { *turns++ })
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
	server := httptest.NewServer(f)
	defer server.Close()
	w := NewWatcher(server.Listener.Addr().String(), slog.New(slog.DiscardHandler))
	w.url = server.URL
	ask := func() Answer {
		t.Helper()
		a, err := w.ask(t.Context(), server.Client())
		errtest.Must(t, err)
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

	q := httptest.NewRequestWithContext(t.Context(), http.MethodGet, Path, nil)
	q.RemoteAddr = "10.244.1.5:1" // a pod
	r := httptest.NewRecorder()
	if f.ServeHTTP(r, q); r.Code != http.StatusForbidden {
		t.Errorf("a pod gets %d", r.Code)
	}
}

// A veild with its own service table probes nothing for veil-site.
func TestOwnServiceTableJudges(t *testing.T) {
	f, _, _ := newFeature(t, config.ServiceProxyEBPF)
	q := httptest.NewRequestWithContext(t.Context(), http.MethodGet, Path, nil)
	q.RemoteAddr = "127.0.0.1:1"
	r := httptest.NewRecorder()
	if f.ServeHTTP(r, q); r.Code != http.StatusNotFound || f.Remote() != nil {
		t.Errorf("status %d, probed %v", r.Code, f.Remote())
	}
}

// The last answer counts for a while without a veild, and then no node is dead.
func TestWatcherKeepsTheLastAnswer(t *testing.T) {
	w := NewWatcher("127.0.0.1:9631", slog.New(slog.DiscardHandler))
	dead, away := nettest.Prefixes("10.245.1.0/24"), errors.New("away")
	begin := time.Unix(1000, 0)
	for _, step := range []struct {
		what    string
		answer  Answer
		err     error
		after   time.Duration
		dead    int
		changed bool
	}{
		{"at the start", Answer{}, nil, 0, 0, false},
		{"a node is dead", Answer{true, dead}, nil, time.Second, 1, true},
		{"the same", Answer{true, dead}, nil, 2 * time.Second, 1, false},
		{"veild restarts", Answer{}, away, 30 * time.Second, 1, false},
		{"it has just begun", Answer{}, nil, 32 * time.Second, 1, false},
		{"the node answers", Answer{true, nil}, nil, 40 * time.Second, 0, true},
		{"again dead", Answer{true, dead}, nil, 41 * time.Second, 1, true},
		{"veild is gone", Answer{}, away, 42*time.Second + keepFor, 0, true},
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
	}
}

func TestAddressOfVeild(t *testing.T) {
	for address, want := range map[string]string{"": "", ":9631": "http://localhost:9631" + Path,
		"0.0.0.0:9631": "http://localhost:9631" + Path, "[::]:9631": "http://localhost:9631" + Path,
		"127.0.0.1:9631": "http://127.0.0.1:9631" + Path,
		"192.0.2.1:9631": "http://192.0.2.1:9631" + Path} {
		if got := NewWatcher(address, nil).url; got != want {
			t.Errorf("%q: %q, want %q", address, got, want)
		}
	}
}
