package telemetry

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/kubeveil/kubeveil/pkg/telemetry/health"
)

// Bounds of the servers.
const (
	scrapeTimeout  = 10 * time.Second
	requestTimeout = 15 * time.Second
)

// MetricsHandler is Handler for the metrics of veild.
func MetricsHandler(m *Metrics, h *health.Health, pods []netip.Prefix) http.Handler {
	return Handler(m.Registry, h, func() []netip.Prefix { return pods }, func() { m.refused.Add(1) })
}

// Handler serves /metrics, /healthz and /readyz. /metrics is for pods, whose addresses lie in the
// ranges that pods returns, and for programs of this node. It calls refused for each other request,
// and refuses it with 403. The status of the other two is 200 when all is well, otherwise 503 with
// the reasons, one per line. It changes nothing.
func Handler(metrics prometheus.Gatherer, h *health.Health, pods func() []netip.Prefix,
	refused func()) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", inside(pods, refused, promhttp.HandlerFor(metrics,
		promhttp.HandlerOpts{Timeout: scrapeTimeout, MaxRequestsInFlight: 4})))
	mux.HandleFunc("GET /healthz", reasons(h.Alive))
	mux.HandleFunc("GET /readyz", reasons(h.Ready))
	return mux
}

// reasons returns a handler that answers "ok", or status 503 with the reasons that f returns.
func reasons(f func() []string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		w.Header().Set("Cache-Control", "no-store")
		if why := f(); len(why) > 0 {
			w.WriteHeader(http.StatusServiceUnavailable)
			_, _ = fmt.Fprintln(w, strings.Join(why, "\n"))
			return
		}
		_, _ = fmt.Fprintln(w, "ok")
	}
}

// ListenMetrics listens on the address of the metrics.
func ListenMetrics(address string) (net.Listener, error) {
	l, err := net.Listen("tcp", address)
	if errors.Is(err, syscall.EADDRINUSE) {
		return nil, fmt.Errorf("metricsAddress %s is in use by another program: set another one, "+
			"or leave it empty (%w)", address, err)
	}
	if err != nil {
		return nil, fmt.Errorf("metricsAddress %s: %w", address, err)
	}
	return l, nil
}

// Serve serves requests on l until ctx ends, then waits briefly for running requests. It closes l.
// It returns nil if ctx ended.
func Serve(ctx context.Context, l net.Listener, h http.Handler, log *slog.Logger) error {
	s := &http.Server{
		Handler:           h,
		ReadHeaderTimeout: requestTimeout, ReadTimeout: requestTimeout,
		WriteTimeout: 2 * requestTimeout, IdleTimeout: 2 * time.Minute,
		MaxHeaderBytes: 16 << 10,
		ErrorLog:       slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
	done := make(chan error, 1)
	go func() { done <- s.Serve(l) }()
	select {
	case err := <-done:
		return fmt.Errorf("serve %s: %w", l.Addr(), err)
	case <-ctx.Done():
	}
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	if err := s.Shutdown(grace); err != nil {
		_ = s.Close()
	}
	if err := <-done; !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve %s: %w", l.Addr(), err)
	}
	return nil
}

// inside passes a request to next only if the answer does not cross the network in clear. It counts
// and refuses other requests. The client must have one of these addresses:
//   - a loopback address, or the address that it connected to: it is a program of this node
//   - an address in pods: the guard drops such a source outside a tunnel, and the answer is routed
//     into the tunnel or to a pod of this node
func inside(pods func() []netip.Prefix, refused func(), next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		from := addrOf(r.RemoteAddr)
		if !fromNode(r) && !slices.ContainsFunc(pods(), func(p netip.Prefix) bool {
			return p.Contains(from)
		}) {
			refused()
			http.Error(w, "metrics are for pods and for programs of this node: the answer to "+
				from.String()+" would cross the network in clear", http.StatusForbidden)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// fromNode reports whether a program of this node sent a request: it has a loopback address, or the
// address that it connected to.
func fromNode(r *http.Request) bool {
	from := addrOf(r.RemoteAddr)
	at, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	return from.IsLoopback() || ok && from.IsValid() && from == addrOf(at.String())
}

// addrOf returns the address in text of the form address:port. It returns the zero Addr if text is
// malformed.
func addrOf(text string) netip.Addr {
	a, err := netip.ParseAddrPort(text)
	if err != nil {
		return netip.Addr{}
	}
	return a.Addr().Unmap().WithZone("")
}
