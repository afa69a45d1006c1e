package telemetry

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/kubeveil/kubeveil/internal/filetest"
	"github.com/kubeveil/kubeveil/pkg/telemetry/health"
	"github.com/kubeveil/kubeveil/pkg/wgkey"
)

func get(h http.Handler, method, path string) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(method, path, nil))
	return w
}

func TestHealthAndReadiness(t *testing.T) {
	h := health.New(time.Minute, "guard in force", "first apply")
	clock := time.Now()
	h.Now = func() time.Time { return clock }
	h.Beat()

	handler := MetricsHandler(metricsOf(busy()), h,
		[]netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}) // where package httptest asks from
	for _, step := range []struct {
		situation string
		do        func()
		path      string
		code      int
		want      string
	}{
		{"started", func() {}, "/healthz", 200, "ok"},
		{"nothing done", func() {}, "/readyz", 503,
			"not yet: first apply\nnot yet: guard in force"},
		{"half done", func() { h.Done("first apply") }, "/readyz", 503, "guard in force"},
		{"all done", func() { h.Done("guard in force") }, "/readyz", 200, "ok"},
		{"guard lost", func() { h.Undone("guard in force") }, "/readyz", 503, "guard in force"},
		{"loop stuck", func() { clock = clock.Add(61 * time.Second) }, "/healthz", 503, "1m1s"},
		{"loop goes on", h.Beat, "/healthz", 200, "ok"},
	} {
		step.do()
		if w := get(handler, "GET", step.path); w.Code != step.code ||
			!strings.Contains(w.Body.String(), step.want) {
			t.Errorf("%s: %s answers %d %q, want %d %q", step.situation, step.path, w.Code, w.Body,
				step.code, step.want)
		}
	}

	if w := get(handler, "GET", "/metrics"); w.Code != 200 ||
		!strings.Contains(w.Body.String(), "kubeveil_peers") {
		t.Errorf("/metrics answers %d", w.Code)
	}

	for _, path := range []string{"/metrics", "/healthz", "/readyz"} {
		if w := get(handler, "POST", path); w.Code != http.StatusMethodNotAllowed {
			t.Errorf("POST %s answers %d", path, w.Code)
		}
	}

	if w := get(handler, "GET", StatusPath); w.Code != http.StatusNotFound {
		t.Errorf("the metrics address serves the status: %d", w.Code)
	}
}

// serve serves h on an admin socket until the test ends.
func serve(t *testing.T, h http.Handler) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "run", "veild.sock")
	l, err := ListenAdmin(path)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- Serve(ctx, l, h, slog.New(slog.DiscardHandler)) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
	return path
}

func TestStatusComesThroughTheAdminSocket(t *testing.T) {
	h := health.New(time.Minute, "guard in force")
	path := serve(t, AdminHandler(busy, h, nil))
	got, err := Fetch(context.Background(), path)
	if err != nil {
		t.Fatal(err)
	}
	want := busy()
	want.NotReady = []string{"not yet: guard in force"}
	if d := cmp.Diff(want, got, cmpopts.EquateComparable(netip.Addr{}, netip.AddrPort{},
		netip.Prefix{})); d != "" {
		t.Errorf("status (-want +got):\n%s", d)
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, error %v, want 0600", info.Mode(), err)
	}
}

func TestStatusShowsNoPrivateKey(t *testing.T) {
	// Status may contain public keys, but no other value of 32 bytes.
	s := busy()
	s.Devices[0].PublicKey = wgkey.Public{9, 9}
	w := get(AdminHandler(func() Status { return s }, health.New(time.Minute), nil), "GET",
		StatusPath)
	for _, word := range []string{"private", "secret", "preshared", "token"} {
		if strings.Contains(strings.ToLower(w.Body.String()), word) {
			t.Errorf("the status has a field with %q", word)
		}
	}
	if !strings.Contains(w.Body.String(), wgkey.Public{9, 9}.String()) {
		t.Error("the public key is not shown")
	}
}

func TestFetchWithoutVeild(t *testing.T) {
	path := filepath.Join(t.TempDir(), "veild.sock")
	if _, err := Fetch(context.Background(), path); !errors.Is(err, fs.ErrNotExist) ||
		!strings.Contains(err.Error(), "veild does not run") {
		t.Errorf("no socket: %v", err)
	}
	stale(t, path)
	if _, err := Fetch(context.Background(), path); err == nil ||
		!strings.Contains(err.Error(), "veild does not run") {
		t.Errorf("nobody listens: %v", err)
	}
	odd := serve(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "no", http.StatusTeapot)
	}))
	if _, err := Fetch(context.Background(), odd); err == nil ||
		!strings.Contains(err.Error(), "418") {
		t.Errorf("odd answer: %v", err)
	}
}

func TestFetchOfAnAnswerThatIsTooLong(t *testing.T) {
	path := serve(t, AdminHandler(busy, health.New(time.Minute), map[string]Page{
		"/v1/long": func(*http.Request) (any, error) { return strings.Repeat("x", maxStatus), nil },
	}))
	if _, err := FetchPage(context.Background(), path, "/v1/long"); err == nil ||
		!strings.Contains(err.Error(), "longer than 64 MiB") {
		t.Errorf("got %v", err)
	}
}

// A page with a body accepts only POST, and only bodies of at most MaxPosted bytes.
func TestPageTakesABody(t *testing.T) {
	path := serve(t, AdminHandler(busy, health.New(time.Minute), map[string]Page{
		"POST /v1/length": func(r *http.Request) (any, error) {
			body, err := io.ReadAll(r.Body)
			return len(body), err
		}}))
	if got, err := PostPage(t.Context(), path, "POST /v1/length", []byte("abc")); err != nil ||
		string(got) != "3" {
		t.Errorf("%s, %v", got, err)
	}
	if _, err := PostPage(t.Context(), path, "POST /v1/length",
		make([]byte, MaxPosted+1)); !errors.Is(err, ErrNoPage) ||
		!strings.Contains(err.Error(), "too large") {
		t.Errorf("a large body: %v", err)
	}
	if _, err := FetchPage(t.Context(), path, "/v1/length"); err == nil {
		t.Error("the page answers without a body")
	}
}

// stale creates a socket without a listener at path.
func stale(t *testing.T, path string) {
	t.Helper()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestListenAdmin(t *testing.T) {
	dir := t.TempDir()
	left := filepath.Join(dir, "left.sock")
	stale(t, left)
	l, err := ListenAdmin(left)
	if err != nil {
		t.Fatalf("a socket that a killed veild left: %v", err)
	}
	defer l.Close()
	if _, err := ListenAdmin(left); err == nil || !strings.Contains(err.Error(), "another veild") {
		t.Errorf("in use: %v", err)
	}
	file := filepath.Join(dir, "file")
	filetest.Write(t, file, nil, 0o600)
	if _, err := ListenAdmin(file); err == nil || !strings.Contains(err.Error(), "not a socket") {
		t.Errorf("a file in its place: %v", err)
	}
	if _, err := os.Stat(file); err != nil {
		t.Errorf("the file was taken away: %v", err)
	}
}

func TestListenMetricsSaysWhichAddress(t *testing.T) {
	if _, err := ListenMetrics("198.18.0.1:no"); err == nil ||
		!strings.Contains(err.Error(), "metricsAddress 198.18.0.1:no") {
		t.Errorf("malformed: %v", err)
	}
}

func FuzzDecodeStatus(f *testing.F) {
	f.Add(
		[]byte(
			`{"node":"a","peers":[{"name":"b","publicKey":"AAAA"}],"table":{"waiting":"2026-01-01T00:00:00Z"}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		s, err := DecodeStatus(data)
		if err == nil {
			_ = s.Table.Lag(now)
		}
	})
}

// Only pods and programs of the node can read metrics. Every host can read whether veild is alive.
func TestMetricsStayInside(t *testing.T) {
	m := metricsOf(busy())
	handler := MetricsHandler(m, health.New(time.Minute), []netip.Prefix{
		netip.MustParsePrefix("198.19.0.0/16"), netip.MustParsePrefix("fd42:1::/48")})
	refused := 0
	for _, tt := range []struct {
		from, at string
		want     int
	}{
		{"198.19.7.2:40000", "198.18.0.11:9631", http.StatusOK},
		{"[fd42:1::7]:40000", "[fd42::b]:9631", http.StatusOK},
		{"[::ffff:198.19.7.2]:40000", "[::ffff:198.18.0.11]:9631", http.StatusOK},
		{"127.0.0.1:40000", "127.0.0.1:9631", http.StatusOK},
		{"198.18.0.11:40000", "198.18.0.11:9631", http.StatusOK},
		{"198.18.0.12:40000", "198.18.0.11:9631", http.StatusForbidden}, // another node's host
		{"[fd42::c]:40000", "[fd42::b]:9631", http.StatusForbidden},
		{"192.0.2.7:40000", "198.18.0.11:9631", http.StatusForbidden},
		{"@", "198.18.0.11:9631", http.StatusForbidden},
	} {
		at := net.TCPAddrFromAddrPort(netip.MustParseAddrPort(tt.at))
		ask := func(path string) int {
			r := httptest.NewRequest(http.MethodGet, path, nil)
			r.RemoteAddr = tt.from
			r = r.WithContext(context.WithValue(r.Context(), http.LocalAddrContextKey, at))
			w := httptest.NewRecorder()
			handler.ServeHTTP(w, r)
			return w.Code
		}
		if got := ask("/metrics"); got != tt.want {
			t.Errorf("%s at %s: %d, want %d", tt.from, tt.at, got, tt.want)
		}
		if got := ask("/healthz"); got == http.StatusForbidden {
			t.Errorf("%s at %s: /healthz is refused", tt.from, tt.at)
		}
		if tt.want == http.StatusForbidden {
			refused++
		}
	}

	counted, _ := value(gather(t, m), "kubeveil_metrics_refused_total", "")
	if counted != float64(refused) {
		t.Errorf("%v are counted as refused, want %d", counted, refused)
	}
}
