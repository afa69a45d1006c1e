package telemetry

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"testing"
	"time"
)

// Metrics go to pods and to programs of the node. Every host may read whether veild lives.
func TestMetricsStayInside(t *testing.T) {
	m := metricsOf(busy())
	handler := MetricsHandler(m, NewHealth(time.Minute), []netip.Prefix{
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
