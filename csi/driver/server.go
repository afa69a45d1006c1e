package driver

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
)

// drain is how long calls may take to end when the server stops; a pod has a little longer
// (manifests/csi).
const drain = 45 * time.Second

// Call is a call that ended.
type Call struct {
	// Method is its name without the service, Volume its volume or snapshot.
	Method, Volume string
	// Err is nil, or why it failed.
	Err  error
	Took time.Duration
}

// Observe receives each call when it ends.
type Observe func(Call)

// NewServer returns a gRPC server that answers errors with the codes of Code, and logs and observes
// calls. It never logs requests: they hold secrets.
func NewServer(log *slog.Logger, observe Observe) *grpc.Server {
	return grpc.NewServer(grpc.UnaryInterceptor(func(ctx context.Context, req any,
		info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
		began := time.Now()
		method := filepath.Base(info.FullMethod)
		r, err := handle(ctx, req)
		code, took := Code(err), time.Since(began)
		if observe != nil {
			observe(Call{Method: method, Volume: volumeOf(req), Err: err, Took: took})
		}
		if err == nil {
			log.Debug("call", "method", method, "volume", volumeOf(req), "took", took)
			return r, nil
		}
		log.Warn("call ended with an error", "method", method, "volume", volumeOf(req),
			"code", code, "error", err, "took", took)
		return nil, status.Error(code, err.Error())
	}))
}

// volumeOf returns the volume or snapshot of a request.
func volumeOf(req any) string {
	switch r := req.(type) {
	case interface{ GetVolumeId() string }:
		return r.GetVolumeId()
	case interface{ GetSnapshotId() string }:
		return r.GetSnapshotId()
	case interface{ GetName() string }:
		return r.GetName()
	}
	return ""
}

// Listen opens the unix socket at path, for root alone. It replaces a socket without a listener; a
// socket with one is an error.
func Listen(path string) (net.Listener, error) {
	if conn, err := net.DialTimeout("unix", path, time.Second); err == nil {
		conn.Close()
		return nil, fmt.Errorf("listen on %s: another process listens there", path)
	}
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return nil, err
	case info.Mode().Type() != fs.ModeSocket:
		return nil, fmt.Errorf("listen on %s: a file of that name is not a socket", path)
	default:
		if err := os.Remove(path); err != nil {
			return nil, err
		}
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(path, 0o600); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

// Serve answers on l until ctx ends, then waits a while for calls under way. Calls that take longer
// end with the process. It closes l.
func Serve(ctx context.Context, s *grpc.Server, l net.Listener) error {
	return serve(ctx, s, l, drain)
}

func serve(ctx context.Context, s *grpc.Server, l net.Listener, patience time.Duration) error {
	done := make(chan error, 1)
	go func() { done <- s.Serve(l) }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
	}
	// Both ways of stopping wait for every call.
	go s.GracefulStop()
	select {
	case err := <-done:
		return err
	case <-time.After(patience):
		go s.Stop()
		return fmt.Errorf("calls were still under way after %v", patience)
	}
}
