package replica

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/kubeveil/kubeveil/pkg/telemetry"
)

// retryListen is the pause before a port that is taken is tried again.
const retryListen = 10 * time.Second

// handler serves /metrics, /healthz and /readyz. /metrics is for pods of the ranges in force.
func (r *replica) handler() http.Handler {
	return telemetry.Handler(r.metrics.Registry, r.health,
		func() []netip.Prefix { return r.now().ClusterRanges }, r.metrics.refused.Inc)
}

// serveMetrics serves h at the address of the metrics until ctx ends, except while the leader is
// another replica on this node. If the address is taken, it tries again later: links do not need
// metrics.
func (r *replica) serveMetrics(ctx context.Context, h http.Handler) {
	said := ""
	for r.Metrics != "" && ctx.Err() == nil {
		beside, replaced := r.beside()
		if beside {
			select {
			case <-ctx.Done():
			case <-replaced:
			}
			continue
		}

		turn, end := until(ctx, replaced)
		err := r.serveTurn(turn, h)
		if err != nil && err.Error() != said {
			said = err.Error()
			r.Log.Warn("metrics are not served; it is tried again", "problem", err)
		}
		if err != nil {
			select {
			case <-turn.Done():
			case <-time.After(retryListen):
			}
		}
		end()
	}
}

// serveTurn serves h at the address of the metrics until ctx ends.
func (r *replica) serveTurn(ctx context.Context, h http.Handler) error {
	l, err := net.Listen("tcp", r.Metrics)
	if errors.Is(err, syscall.EADDRINUSE) {
		return fmt.Errorf("%w: another replica of veil-site on this node, or another program, "+
			"has the port", err)
	}
	if err != nil {
		return err
	}
	r.Log.Info("metrics are served", "address", l.Addr().String())
	return telemetry.Serve(ctx, l, h, r.Log)
}

// listenUnix listens on a Unix socket, for the own user only. It replaces a socket that an earlier
// process left.
func listenUnix(path string) (net.Listener, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, fmt.Errorf("socket for probes: %w", err)
	}
	info, err := os.Lstat(path)
	if err == nil && info.Mode().Type() != fs.ModeSocket {
		return nil, fmt.Errorf("socket for probes %s: a file that is not a socket is in its "+
			"place; name another by --socket", path)
	}
	if err == nil {
		err = os.Remove(path)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("socket for probes: %w", err)
	}

	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, fmt.Errorf("socket for probes: %w", err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		return nil, errors.Join(fmt.Errorf("socket for probes: %w", err), l.Close())
	}
	return l, nil
}

// probeLimit bounds a probe.
const probeLimit = 5 * time.Second

// Probes holds the paths that Probe requests, by what it checks.
var Probes = map[string]string{"alive": "/healthz", "ready": "/readyz"}

// Probe checks whether the replica behind a socket is "alive" or "ready". It returns an error with
// the reasons if it is not.
func Probe(ctx context.Context, socket, what string) error {
	ctx, cancel := context.WithTimeout(ctx, probeLimit)
	defer cancel()
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", socket)
		}}}
	q, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://veil-site"+Probes[what], nil)
	if err != nil {
		return err
	}
	answer, err := client.Do(q)
	if err != nil {
		return fmt.Errorf("no veil-site answers at %s: %w", socket, errors.Unwrap(err))
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(io.LimitReader(answer.Body, 64<<10))
	if err != nil {
		return err
	}
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("not %s: %s", what, strings.TrimSpace(string(body)))
	}
	return nil
}
