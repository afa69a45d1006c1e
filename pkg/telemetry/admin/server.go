package admin

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/kubeveil/kubeveil/pkg/telemetry"
	"github.com/kubeveil/kubeveil/pkg/telemetry/health"
)

// MaxPosted is the maximum size in bytes of the body of a POST request.
const MaxPosted = 8 << 20

// ErrNoPage matches the error of FetchPage if the page returned an error. The text is that error.
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

// Page returns the answer to a request of the admin socket, which is sent as JSON. An error means
// that the request has no answer: its text is sent with status 404, or with status 421 if it
// matches ErrNotHere.
type Page func(r *http.Request) (any, error)

// Handler serves the status at telemetry.StatusPath, and pages by their paths. A path may begin
// with the method POST; else the method is GET. A body has at most MaxPosted bytes.
func Handler(snapshot telemetry.Snapshot, h *health.Health, pages map[string]Page) http.Handler {
	mux := http.NewServeMux()
	page(mux, telemetry.StatusPath, func(*http.Request) (any, error) {
		s, err := snapshot()
		s.NotReady = h.Ready()
		s.Ready = len(s.NotReady) == 0
		return s, err
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

// Listen opens the admin socket at path, for root only. It replaces a socket without a listener. A
// socket with a listener is an error.
func Listen(path string) (net.Listener, error) {
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
