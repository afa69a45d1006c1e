package driver

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/filetest"
	"github.com/kubeveil/kubeveil/internal/nettest"
)

func TestRegistration(t *testing.T) {
	dir := t.TempDir()
	r := &Registration{Endpoint: "/var/lib/kubelet/plugins/x/csi.sock",
		Log: slog.New(slog.DiscardHandler)}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- r.Serve(ctx, dir) }()
	nettest.Until(t, 10*time.Second, "the socket is there", func() bool {
		_, err := os.Stat(RegistrationSocket(dir))
		return err == nil
	})
	conn, err := grpc.NewClient("unix:"+RegistrationSocket(dir),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	errtest.Must(t, err)

	kubelet := registration.NewRegistrationClient(conn)
	info, err := kubelet.GetInfo(ctx, &registration.InfoRequest{}, grpc.WaitForReady(true))
	if err != nil || info.Type != "CSIPlugin" || info.Name != Name || info.Endpoint != r.Endpoint ||
		len(info.SupportedVersions) != 1 {
		t.Errorf("%v, %v", info, err)
	}

	for _, taken := range []bool{true, false, true} {
		if _, err := kubelet.NotifyRegistrationStatus(ctx,
			&registration.RegistrationStatus{PluginRegistered: taken}); err != nil ||
			r.Registered() != taken {
			t.Errorf("told %v, says %v, %v", taken, r.Registered(), err)
		}
	}

	conn.Close()
	stop()
	errtest.Check(t, <-done)
}

func TestListen(t *testing.T) {
	path := filepath.Join(t.TempDir(), "csi.sock")
	first, err := Listen(path)
	errtest.Must(t, err)
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the socket is %v, %v", info.Mode(), err)
	}
	if _, err := Listen(path); err == nil || !strings.Contains(err.Error(), "another process") {
		t.Errorf("a socket in use was replaced: %v", err)
	}

	first.(interface{ SetUnlinkOnClose(bool) }).SetUnlinkOnClose(false)
	first.Close()
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		t.Fatal("no socket was left behind")
	}
	second, err := Listen(path)
	if err != nil {
		t.Fatalf("a socket that was left behind: %v", err)
	}

	second.Close()
	filetest.Write(t, path, nil, 0o600)
	if _, err := Listen(path); err == nil || !strings.Contains(err.Error(), "not a socket") {
		t.Errorf("a file was replaced: %v", err)
	}
}

// hanging is an identity service whose calls do not end, even when their context ends.
type hanging struct {
	csi.UnimplementedIdentityServer
	begun, let chan struct{}
}

func (h hanging) Probe(context.Context, *csi.ProbeRequest) (*csi.ProbeResponse, error) {
	close(h.begun)
	<-h.let
	return &csi.ProbeResponse{}, nil
}

// A call that does not end delays the end of the server only up to a limit.
func TestServeEndsBesideACallThatDoesNot(t *testing.T) {
	l, err := Listen(filepath.Join(t.TempDir(), "csi.sock"))
	errtest.Must(t, err)

	h := hanging{begun: make(chan struct{}), let: make(chan struct{})}
	s := NewServer(slog.New(slog.DiscardHandler), nil)
	csi.RegisterIdentityServer(s, h)
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- serve(ctx, s, l, 10*time.Millisecond) }()
	conn, err := grpc.NewClient("unix:"+l.Addr().String(),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	errtest.Must(t, err)
	defer conn.Close()

	called := make(chan error, 1)
	go func() {
		_, err := csi.NewIdentityClient(conn).Probe(t.Context(), &csi.ProbeRequest{})
		called <- err
	}()
	<-h.begun
	stop()
	if err := <-done; err == nil || !strings.Contains(err.Error(), "did not end within") {
		t.Errorf("%v", err)
	}

	close(h.let)
	<-called
	s.Stop()
}

// A server whose context ends before it begins is stopped without an error.
func TestServerThatIsStoppedBeforeItBegins(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	stop()
	for range 100 {
		l, err := Listen(filepath.Join(t.TempDir(), "csi.sock"))
		errtest.Must(t, err)
		errtest.Must(t, Serve(ctx, grpc.NewServer(), l))
	}
}
