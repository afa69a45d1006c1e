package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/csi/crypt"
	"github.com/kubeveil/kubeveil/csi/crypt/crypttest"
	"github.com/kubeveil/kubeveil/csi/crypt/dmcrypt"
	"github.com/kubeveil/kubeveil/csi/crypt/dmcrypt/dmcrypttest"
	"github.com/kubeveil/kubeveil/csi/driver"
	"github.com/kubeveil/kubeveil/csi/keyring"
	"github.com/kubeveil/kubeveil/csi/mount"
	"github.com/kubeveil/kubeveil/csi/volume"
	"github.com/kubeveil/kubeveil/csi/volume/filestore"
	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/filetest"
	"github.com/kubeveil/kubeveil/internal/nettest"
)

// found is the state of a node when a driver starts. Its only mapping has epoch 2.
type found struct {
	options
	*dmcrypttest.Engine
	disk    *crypttest.Disk
	mapping string
}

// newFound returns a node whose disk has that epoch. If the epoch is greater than 2, another node
// has opened the volume.
func newFound(t *testing.T, epoch uint64) *found {
	t.Helper()
	u, engine := crypt.UUID{1}, dmcrypttest.New()
	table := dmcrypt.Expected(u, 2, crypt.SectorSize, 1, "", false)
	errtest.Must(t, errtest.Of(engine.Create(t.Context(), table, nil)))

	dir, disk := t.TempDir(), crypttest.NewDisk(t, u)
	disk.Seal(t, epoch)
	f := &found{Engine: engine, disk: disk, mapping: table.Name, options: options{
		node: "node-1", logLevel: "error", logFormat: "text", latencyTuning: tuningOff,
		store: storeKubernetes, run: filepath.Join(dir, "run"), files: filepath.Join(dir, "files"),
		endpoint: filepath.Join(dir, "csi.sock"), keyFile: filepath.Join(dir, "key"),
		rewrapEvery: time.Hour, trimEvery: time.Hour, requestsEvery: time.Hour,
	}}
	f.adjust = func(c *volume.Config) { c.Engine, c.OpenBelow = engine, disk.OpenBelow }
	errtest.Must(t, os.Mkdir(f.run, 0o700), keyring.CreateFile(f.keyFile))
	return f
}

// mark suspends the mapping and leaves the mark of a copy whose process died.
func (f *found) mark(t *testing.T) {
	t.Helper()
	f.Edit(f.mapping, func(m *dmcrypt.Mapping) { m.Suspended = true })
	filetest.Write(t, filepath.Join(f.run, f.mapping+".still"), []byte("pvc-1"),
		0o600)
}

func (f *found) suspended() bool {
	m, err := f.Lookup(context.Background(), f.mapping)
	return err == nil && m.Suspended
}

// fenced reports whether the mapping can no longer write to the disk.
func (f *found) fenced() bool { return len(f.Live()) == 0 }

// without configures the driver with an API server that is away. If accepts is set, the server
// accepts connections and never answers. Otherwise it refuses connections.
func (f *found) without(t *testing.T, accepts bool) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	errtest.Must(t, err)
	if accepts {
		t.Cleanup(func() { l.Close() })
	} else if err := l.Close(); err != nil {
		t.Fatal(err)
	}

	f.kubeconfig = filepath.Join(t.TempDir(), "kubeconfig")
	errtest.Must(t, os.WriteFile(f.kubeconfig, fmt.Appendf(nil, `apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: "http://%s"}}]
contexts: [{name: c, context: {cluster: c}}]
current-context: c
`, l.Addr()), 0o600))
}

// A driver that starts while the API server is away resumes mappings that a dead process left
// suspended, and fences volumes that another node has opened since.
func TestStartWithoutAPIServer(t *testing.T) {
	for server, accepts := range map[string]bool{"accepts and never answers": true,
		"refuses": false} {
		for name, c := range map[string]struct {
			epoch  uint64
			marked bool
			done   func(*found) bool
		}{
			"left suspended": {2, true, func(f *found) bool {
				return !f.suspended() && !f.fenced()
			}},
			"left suspended and taken":    {3, true, (*found).fenced},
			"taken, and nobody marked it": {3, false, (*found).fenced},
		} {
			t.Run(server+", "+name, func(t *testing.T) {
				f := newFound(t, c.epoch)
				if c.marked {
					f.mark(t)
				}
				f.without(t, accepts)

				ctx, stop := context.WithCancel(t.Context())
				done := make(chan error, 1)
				go func() { done <- f.serve(ctx) }()
				nettest.Until(t, 10*time.Second, "it is done", func() bool { return c.done(f) })
				stop()
				if err := <-done; !errors.Is(err, context.Canceled) {
					t.Error(err)
				}
			})
		}
	}
}

// A driver that fails to start still resumes mappings that a dead process left suspended.
func TestStartThatFailsResumesFirst(t *testing.T) {
	f := newFound(t, 2)
	f.mark(t)
	f.without(t, false)
	errtest.Must(t, os.Remove(f.keyFile))
	if err := f.serve(t.Context()); err == nil || !strings.Contains(err.Error(), "make-key") ||
		f.suspended() || f.fenced() {
		t.Errorf("%v, suspended %v, mappings %v", err, f.suspended(), f.Live())
	}
}

// A driver that can read the states fences volumes that belong to another node according to their
// state.
func TestStartFencesByTheState(t *testing.T) {
	f := newFound(t, 2)
	dir := t.TempDir()
	f.store, f.cluster = storeFile+dir, "c"
	st := ready(0)
	st.UUID, st.Writer, st.Epoch = crypt.UUID{1}, "node-2", 3
	errtest.Must(t, (&filestore.Folder{Dir: dir}).Create(t.Context(), st))

	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- f.serve(ctx) }()
	nettest.Until(t, 10*time.Second, "it is fenced", f.fenced)
	stop()
	errtest.Check(t, <-done)
}

// A mapping that is fenced before the driver is set up is counted.
func TestFencedAtTheStartIsCounted(t *testing.T) {
	f := newFound(t, 3)
	f.mark(t)
	f.store, f.cluster = storeFile+t.TempDir(), "c"
	l, err := net.Listen("tcp", "127.0.0.1:0")
	errtest.Must(t, err)
	f.metrics = l.Addr().String()
	errtest.Must(t, l.Close())

	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- f.serve(ctx) }()
	nettest.Until(t, 10*time.Second, "it is counted", func() bool {
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+f.metrics+"/metrics",
			nil)
		errtest.Must(t, err)
		answer, err := http.DefaultClient.Do(r)
		if err != nil {
			return false
		}
		defer answer.Body.Close()
		text, err := io.ReadAll(answer.Body)
		return err == nil && strings.Contains(string(text), "\nkubeveil_csi_fenced_total 1\n")
	})
	stop()
	errtest.Check(t, <-done)
}

// private is a mount table whose mounts do not propagate out of the driver's container.
type private struct {
	mount.System
	asked string
}

func (*private) List() ([]mount.Mount, error) { return nil, nil }

func (p *private) CheckShared(path string) error {
	p.asked = path
	return mount.ErrPrivate
}

// A driver whose mounts would not reach the host does not register, because pods would write in
// clear. If such mounts are allowed, because the driver runs in the kubelet's mount namespace, it
// registers.
func TestStartWherePodsWouldSeeNoMount(t *testing.T) {
	for name, allowed := range map[string]bool{"with a kubelet": false,
		"in the kubelet's mount namespace": true} {
		t.Run(name, func(t *testing.T) {
			f, table := newFound(t, 2), &private{}
			f.store, f.cluster = storeFile+t.TempDir(), "c"
			f.mounts, f.privateMounts = table, allowed
			// The name of a socket has at most 107 bytes.
			dir, err := os.MkdirTemp("", "veil")
			if err == nil {
				t.Cleanup(func() { os.RemoveAll(dir) })
				f.registration = filepath.Join(dir, "plugins_registry")
				err = os.Mkdir(f.registration, 0o700)
			}
			errtest.Must(t, err)

			ctx, stop := context.WithTimeout(t.Context(), 10*time.Second)
			defer stop()
			done := make(chan error, 1)
			go func() { done <- f.serve(ctx) }()
			if allowed {
				nettest.Until(t, 10*time.Second, "it registers", func() bool {
					sockets, err := os.ReadDir(f.registration)
					return err == nil && len(sockets) == 1
				})
				stop()
			}

			err = <-done
			sockets, unread := os.ReadDir(f.registration)
			if unread != nil {
				t.Fatal(unread)
			}
			if refused := errors.Is(err, mount.ErrPrivate); refused == allowed ||
				!allowed && (table.asked != filepath.Dir(f.registration) || len(sockets) != 0) {
				t.Errorf("%v, asked of %q, sockets %v", err, table.asked, sockets)
			}
		})
	}
}

// away is a store whose API server does not answer.
type away struct{ volume.Store }

func (away) List(context.Context) ([]volume.State, error) { return nil, volume.ErrUnavailable }

func (away) Get(context.Context, string) (volume.State, volume.Revision, error) {
	return volume.State{}, "", volume.ErrUnavailable
}

// alone runs the work that does not need the API server, until the test stops it.
func (f *found) alone(t *testing.T) (stop func()) {
	t.Helper()
	sets, err := f.sets(states{Store: away{}}, slog.New(slog.DiscardHandler))
	errtest.Must(t, err)
	d, err := driver.New(driver.Config{Node: f.node, Sets: sets, Mounts: mount.Host{}})
	errtest.Must(t, err)

	ctx, cancel := context.WithCancel(t.Context())
	var g errgroup.Group
	newProcess(&f.options, d, states{}, slog.New(slog.DiscardHandler)).alone(ctx, &g)
	return func() {
		cancel()
		errtest.Check(t, g.Wait())
	}
}

// Another node opens the volume while this node cannot reach the API server. This node fences the
// volume within one round.
func TestRecordsOfDisksAreReadWithoutAPIServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFound(t, 2)
		stop := f.alone(t)
		defer stop()
		synctest.Wait()
		if f.fenced() {
			t.Error("a volume that other nodes do not have was fenced")
		}

		f.disk.Seal(t, 3)
		<-time.After(recordsEvery + recordsEvery/5)
		if !f.fenced() {
			t.Errorf("mappings %v", f.Live())
		}
	})
}

// A volume that another process holds is resumed once that process has ended.
func TestMarksAreTriedAgainWithoutAPIServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFound(t, 2)
		f.mark(t)
		held, err := os.Create(filepath.Join(f.run, "pvc-1.lock"))
		if err == nil {
			err = unix.Flock(int(held.Fd()), unix.LOCK_EX)
		}
		errtest.Must(t, err)
		stop := f.alone(t)
		defer stop()
		synctest.Wait()
		if !f.suspended() {
			t.Error("resumed while another process held its volume")
		}

		errtest.Must(t, held.Close())
		<-time.After(again + again/5)
		if f.suspended() || !slices.Equal(f.Live(), []string{f.mapping}) {
			t.Errorf("suspended %v, mappings %v", f.suspended(), f.Live())
		}
	})
}
