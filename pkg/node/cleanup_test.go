package node

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/filetest"
	"github.com/kubeveil/kubeveil/pkg/abi"
)

// Cleanup is refused while a process listens on the admin socket, even if that process does not
// answer in time.
func TestCleanupIsRefusedBesideASlowVeild(t *testing.T) {
	listen := func(t *testing.T, path string) net.Listener {
		t.Helper()
		l, err := net.Listen("unix", path)
		errtest.Must(t, err)
		t.Cleanup(func() { l.Close() })
		return l
	}

	serve := func(h http.HandlerFunc) func(t *testing.T, path string) {
		return func(t *testing.T, path string) {
			s := &http.Server{Handler: h}
			l := listen(t, path)
			go func() { _ = s.Serve(l) }()
			t.Cleanup(func() { s.Close() })
		}
	}
	for name, tt := range map[string]struct {
		make    func(t *testing.T, path string)
		running bool
	}{
		"no socket": {func(*testing.T, string) {}, false},
		"a socket that nobody serves": {func(t *testing.T, path string) {
			l := listen(t, path)
			l.(*net.UnixListener).SetUnlinkOnClose(false)
			l.Close()
		}, false},
		"veild answers": {serve(func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprintln(w, "{}")
		}), true},
		"veild has an error": {serve(func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, "x", http.StatusInternalServerError)
		}), true},
		"veild does not answer": {func(t *testing.T, path string) { listen(t, path) }, true},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "veild.sock")
			tt.make(t, path)
			ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
			defer cancel()
			if err := checkStopped(ctx, path); errors.Is(err, ErrRunning) != tt.running ||
				err != nil != tt.running {
				t.Errorf("got %v, want running %t", err, tt.running)
			}
		})
	}
}

// Storage does not need the network: what it has on the node must outlive it.
func TestRemoveRunFiles(t *testing.T) {
	for name, tt := range map[string]struct {
		others []string
		left   []string
		// stays is the logged rest; "" when everything is gone.
		stays string
	}{
		"the network alone": {},
		"beside volumes and keys": {others: []string{"csi/pvc-1.lock", "kms/kms.sock"},
			left: []string{"csi", "csi/pvc-1.lock", "kms", "kms/kms.sock"}, stays: "[csi kms]"},
		"beside what nobody knows": {others: []string{"keys"}, left: []string{"keys"},
			stays: "[keys]"},
		"beside a half-written key": {others: []string{".key.tmp-123"}},
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "kubeveil")
			ours := []string{"pods/a.json", "ipam/kubeveil/last_reserved_ip.0", "wg/veil0.json",
				"key", "snapshot.json", "ready", "veild.sock"}
			for _, f := range slices.Concat(ours, tt.others) {
				path := filepath.Join(dir, f)
				errtest.Must(t, os.MkdirAll(filepath.Dir(path), 0o700))
				filetest.Write(t, path, nil, 0o600)
			}

			for i, some := range []bool{true, false} {
				var log bytes.Buffer
				said, err := removeRunFiles(dir, slog.New(slog.NewTextHandler(&log, nil)))
				if err != nil || (len(said) > 0) != some ||
					some && slices.Contains(said, dir) != (tt.stays == "") {
					t.Errorf("time %d: it says %q: %v", i+1, said, err)
				}
				if (log.Len() > 0) != (tt.stays != "") ||
					!strings.Contains(log.String(), tt.stays) {
					t.Errorf("time %d: it logs %q, want %q", i+1, &log, tt.stays)
				}
			}

			var left []string
			err := filepath.WalkDir(dir, func(path string, _ os.DirEntry, err error) error {
				if path != dir {
					left = append(left, path[len(dir)+1:])
				}
				if os.IsNotExist(err) {
					return nil
				}
				return err
			})
			if err != nil || !slices.Equal(left, tt.left) {
				t.Errorf("left %q, want %q: %v", left, tt.left, err)
			}
		})
	}
}

func TestRunFilesAreInRunDir(t *testing.T) {
	for _, f := range runFiles {
		if filepath.Dir(f) != abi.RunDir {
			t.Errorf("%s is not in %s", f, abi.RunDir)
		}
	}
}
