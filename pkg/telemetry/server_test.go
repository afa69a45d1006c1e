package telemetry

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/kubeveil/kubeveil/pkg/telemetry/health"
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

func TestListenMetricsSaysWhichAddress(t *testing.T) {
	if _, err := ListenMetrics("198.18.0.1:no"); err == nil ||
		!strings.Contains(err.Error(), "metricsAddress 198.18.0.1:no") {
		t.Errorf("malformed: %v", err)
	}
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
