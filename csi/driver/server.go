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

// drain is how long Serve waits for calls under way when the server stops. The pod's termination
// grace period is a little longer (manifests/csi).
const drain = 45 * time.Second

// Call describes a CSI call that ended.
type Call struct {
	// Method is the call's name without the service. Volume is its volume or snapshot.
	Method, Volume string
	// Err is the call's error, or nil.
	Err  error
	Took time.Duration
}

// Observe receives each call when it ends.
type Observe func(Call)

// NewServer returns a gRPC server that maps errors to codes with Code. It logs each call and passes
// it to observe, which may be nil. It never logs requests, because they hold secrets.
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

// volumeOf returns the id or name of a request's volume or snapshot, or an empty string.
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

// Listen opens a unix socket at path that only root may use. It replaces a stale socket. It returns
// an error if another process listens there.
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

// Serve serves calls on l until ctx ends, then waits up to drain for calls under way. Calls that
// take longer end with the process. It closes l.
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
	// Run both in goroutines: GracefulStop and Stop wait for all calls, and a call may hang.
	go s.GracefulStop()
	select {
	case err := <-done:
		if errors.Is(err, grpc.ErrServerStopped) { // it was stopped before it began
			return nil
		}
		return err
	case <-time.After(patience):
		go s.Stop()
		return fmt.Errorf("some calls did not end within %v", patience)
	}
}
