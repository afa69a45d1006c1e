package main

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kubeveil/kubeveil/csi/backend"
	"github.com/kubeveil/kubeveil/csi/crypt/dmcrypt"
	"github.com/kubeveil/kubeveil/csi/crypt/dmcrypt/dmcrypttest"
	"github.com/kubeveil/kubeveil/csi/driver"
	"github.com/kubeveil/kubeveil/csi/mount"
	"github.com/kubeveil/kubeveil/csi/volume"
	"github.com/kubeveil/kubeveil/csi/volume/filestore"
	"github.com/kubeveil/kubeveil/internal/errtest"
)

// The driver itself answers the liveness probe. It is healthy if the server of its socket and
// device-mapper work.
func TestHealthIsTheDriversAnswer(t *testing.T) {
	engine := dmcrypttest.New()
	var missing error
	engine.Hook = func(op, _ string) error {
		if op == "answer" {
			return missing
		}
		return nil
	}
	set := volume.NewSet(volume.Config{
		Cluster: "c", Node: "n", Store: &filestore.Folder{Dir: t.TempDir()}, Engine: engine,
		Backend: &backend.Files{Dir: t.TempDir()},
	})

	d, err := driver.New(driver.Config{Node: "n",
		Sets: map[string]*volume.Set{driver.BackendFile: set}, Mounts: mount.Host{}})
	errtest.Must(t, err)

	o := options{endpoint: filepath.Join(t.TempDir(), "csi.sock")}
	joined := false
	handler := o.handler(prometheus.NewRegistry(), func() bool { return joined },
		func() bool { return true })
	healthy := func(want int, because string) {
		t.Helper()
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/healthz",
			nil))
		if w.Code != want || !strings.Contains(w.Body.String(), because) {
			t.Errorf("%d %q, want %d and %q", w.Code, w.Body, want, because)
		}
	}

	healthy(http.StatusOK, "waits for the API server")
	joined = true
	healthy(http.StatusServiceUnavailable, o.endpoint)
	l, err := driver.Listen(o.endpoint)
	errtest.Must(t, err)

	server := driver.NewServer(slog.New(slog.DiscardHandler), nil)
	d.Register(server)
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- driver.Serve(ctx, server, l) }()
	healthy(http.StatusOK, "ok")
	missing = fmt.Errorf("%w: test", dmcrypt.ErrNotSupported)
	healthy(http.StatusServiceUnavailable, dmcrypt.ErrNotSupported.Error())
	stop()
	errtest.Check(t, <-done)
}
