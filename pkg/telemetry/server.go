package telemetry

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/kubeveil/kubeveil/pkg/telemetry/health"
)

// Bounds of the servers and of the client of the admin socket.
const (
	scrapeTimeout  = 10 * time.Second
	requestTimeout = 15 * time.Second
	maxStatus      = 64 << 20 // bytes of a status; 1,000 peers have about one MiB
	maxReason      = 4 << 10  // bytes of the text of an error
)

// MaxPosted is the maximum size in bytes of the body of a POST request.
const MaxPosted = 8 << 20

// StatusPath is where the admin socket serves Status.
const StatusPath = "/v1/status"

// MetricsHandler serves /metrics, /healthz and /readyz. /metrics is for pods, whose addresses lie
// in pods, and for programs of this node; it refuses others with 403. The status of the other two
// is 200 when all is well, otherwise 503 with the reasons, one per line. It changes nothing.
func MetricsHandler(m *Metrics, h *health.Health, pods []netip.Prefix) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", inside(pods, m.refused, promhttp.HandlerFor(m.Registry,
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

// Page returns the answer to a request of the admin socket, which is sent as JSON. An error means
// that the request has no answer: its text is sent with status 404, or with status 421 if it
// matches ErrNotHere.
type Page func(r *http.Request) (any, error)

// AdminHandler serves StatusPath, and pages by their paths. A path may begin with the method POST;
// else the method is GET. A body has at most MaxPosted bytes.
func AdminHandler(snapshot Snapshot, h *health.Health, pages map[string]Page) http.Handler {
	mux := http.NewServeMux()
	page(mux, StatusPath, func(*http.Request) (any, error) {
		s := snapshot()
		s.NotReady = h.Ready()
		s.Ready = len(s.NotReady) == 0
		return s, nil
	})
	for path, p := range pages {
		page(mux, path, p)
	}
	return mux
}

func page(mux *http.ServeMux, path string, p Page) {
	if !strings.HasPrefix(path, http.MethodPost+" ") {
		path = http.MethodGet + " " + path
	}
	mux.HandleFunc(path, func(w http.ResponseWriter, r *http.Request) {
		r.Body = http.MaxBytesReader(w, r.Body, MaxPosted)
		v, err := p(r)
		if errors.Is(err, ErrNotHere) {
			http.Error(w, err.Error(), http.StatusMisdirectedRequest)
			return
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusNotFound)
			return
		}
		data, err := json.Marshal(v)
		if err != nil {
			http.Error(w, "encode answer: "+err.Error(), http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Cache-Control", "no-store")
		_, _ = w.Write(data)
	})
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

// ListenAdmin opens the admin socket at path, for root only. It replaces a socket
// without a listener. A socket with a listener is an error.
func ListenAdmin(path string) (net.Listener, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, fmt.Errorf("admin socket: %w", err)
	}

	switch info, err := os.Lstat(path); {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return nil, fmt.Errorf("admin socket: %w", err)
	case info.Mode().Type() != fs.ModeSocket:
		return nil, fmt.Errorf("admin socket %s: a file that is not a socket is in its place; "+
			"move it away", path)
	default:
		if c, err := net.DialTimeout("unix", path, time.Second); err == nil {
			_ = c.Close()
			return nil, fmt.Errorf("admin socket %s: another veild is running on this node", path)
		}
		if err := os.Remove(path); err != nil {
			return nil, fmt.Errorf("admin socket: remove the old one: %w", err)
		}
	}

	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, fmt.Errorf("admin socket: %w", err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		return nil, errors.Join(fmt.Errorf("admin socket: %w", err), l.Close())
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

// Fetch reads the status of the veild behind the admin socket at path. If no veild
// listens there, the error matches fs.ErrNotExist or syscall.ECONNREFUSED.
func Fetch(ctx context.Context, path string) (Status, error) {
	body, err := FetchPage(ctx, path, StatusPath)
	if err != nil {
		return Status{}, err
	}
	return DecodeStatus(body)
}

// ErrNoPage matches the error of FetchPage if the page returned an error. The text contains the
// reason.
var ErrNoPage = errors.New("nothing to show")

// ErrNotHere matches the error of a page, and of FetchPage, about a pod that is not on this node.
var ErrNotHere = errors.New("not on this node")

// NotHere returns an error that matches ErrNotHere. It names some of the node's pods.
func NotHere(pod string, pods []string) error {
	const shown = 20
	if len(pods) == 0 {
		return fmt.Errorf("pod %q is %w, which has none", pod, ErrNotHere)
	}
	names, more := strings.Join(pods[:min(len(pods), shown)], ", "), ""
	if n := len(pods) - shown; n > 0 {
		more = fmt.Sprintf(" and %d more", n)
	}
	return fmt.Errorf("pod %q, as NAMESPACE/NAME, is %w: its pods are %s%s", pod, ErrNotHere, names,
		more)
}

// FetchPage returns the JSON of any page of the admin socket. page is a path and may have a query.
// Its errors are as for Fetch, ErrNoPage and ErrNotHere.
func FetchPage(ctx context.Context, path, page string) ([]byte, error) {
	return fetch(ctx, path, http.MethodGet, page, nil)
}

// PostPage sends body to a page whose path begins with "POST ", and returns its answer like
// FetchPage.
func PostPage(ctx context.Context, path, page string, body []byte) ([]byte, error) {
	method, page, _ := strings.Cut(page, " ")
	return fetch(ctx, path, method, page, body)
}

func fetch(ctx context.Context, path, method, page string, posted []byte) ([]byte, error) {
	transport := &http.Transport{DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", path)
		}}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, "http://veild"+page, bytes.NewReader(posted))
	if err != nil {
		return nil, fmt.Errorf("ask veild: %w", err)
	}

	resp, err := (&http.Client{Transport: transport}).Do(req)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ECONNREFUSED):
		return nil, fmt.Errorf("veild does not run on this node: no process listens on %s. If it "+
			"ran since boot, data path and guard stay in force: %w", path, err)
	case errors.Is(err, fs.ErrPermission):
		return nil, fmt.Errorf("only root may use the admin socket: run veilctl as root: %w", err)
	case err != nil:
		return nil, fmt.Errorf("ask veild: %w", err)
	}
	defer resp.Body.Close()

	body, err := io.ReadAll(io.LimitReader(resp.Body, maxStatus+1))
	if err != nil {
		return nil, fmt.Errorf("ask veild: %w", err)
	}
	if len(body) > maxStatus {
		return nil, fmt.Errorf("the answer of veild is longer than %d MiB", maxStatus>>20)
	}

	text := strings.TrimSpace(string(body[:min(len(body), maxReason)]))
	switch resp.StatusCode {
	case http.StatusOK:
		return body, nil
	case http.StatusNotFound:
		return nil, fmt.Errorf("%w: %s", ErrNoPage, text)
	case http.StatusMisdirectedRequest:
		return nil, notHereError(text)
	}

	return nil, fmt.Errorf("veild answered %s: %s", resp.Status, text)
}

// notHereError is the text of an error that matches ErrNotHere.
type notHereError string

func (e notHereError) Error() string { return string(e) }

func (notHereError) Unwrap() error { return ErrNotHere }

// DecodeStatus reads the JSON of a Status; fields that a newer veild added are ignored.
func DecodeStatus(data []byte) (Status, error) {
	var s Status
	if err := json.Unmarshal(data, &s); err != nil {
		return Status{}, fmt.Errorf("status of veild: %w", err)
	}
	return s, nil
}

// inside passes a request to next only if the answer does not cross the network in clear. It counts
// and refuses other requests. The client must have one of these addresses:
//   - a loopback address, or the address that it connected to: it is a program of this node
//   - an address in pods: the guard drops such a source outside a tunnel, and the answer is routed
//     into the tunnel or to a pod of this node
func inside(pods []netip.Prefix, refused prometheus.Counter, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		from := addrOf(r.RemoteAddr)
		own := from.IsLoopback()
		if at, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr); ok {
			own = own || from == addrOf(at.String())
		}
		if !from.IsValid() || !own && !slices.ContainsFunc(pods, func(p netip.Prefix) bool {
			return p.Contains(from)
		}) {
			refused.Inc()
			http.Error(w, "metrics are for pods and for programs of this node: the answer to "+
				from.String()+" would cross the network in clear", http.StatusForbidden)
			return
		}
		next.ServeHTTP(w, r)
	})
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
