package driver

import (
	"context"
	"encoding/base64"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/kubeveil/kubeveil/csi/crypt"
	"github.com/kubeveil/kubeveil/csi/crypt/dmcrypt"
	"github.com/kubeveil/kubeveil/csi/crypt/dmcrypt/dmcrypttest"
	"github.com/kubeveil/kubeveil/csi/internal/blk"
	"github.com/kubeveil/kubeveil/csi/internal/blk/blktest"
	"github.com/kubeveil/kubeveil/csi/keyring"
	"github.com/kubeveil/kubeveil/csi/mount/mounttest"
	"github.com/kubeveil/kubeveil/csi/volume"
	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
)

func TestMain(m *testing.M) {
	if os.Getenv(hereEnv) != "" {
		os.Exit(m.Run())
	}
	os.Exit(nettest.Run(m))
}

const cluster = "c0ffee00-0000-4000-8000-000000000001"

// errDead is the error of every operation in a killed process.
var errDead = errors.New("killed")

// machine is a node whose disks, mappings and mounts are in memory. They outlive the processes of
// the driver on it.
type machine struct {
	t      testing.TB
	name   string
	dir    string
	store  *states
	engine *dmcrypttest.Engine
	mounts *mounttest.System
	keys   map[string]keyring.Provider
	log    *slog.Logger
	config func(*Config)

	mu      sync.Mutex
	disks   map[string]*blktest.Disk
	numbers map[string]uint64
	room    int64
	// steps counts the operations of the process. At operation number kill the process dies, or the
	// operation fails and the process continues.
	steps, kill int
	goesOn      bool
	// end makes the process stop waiting, because a killed process does not wait. It also ends
	// requests, the context of calls that may wait.
	end      func()
	requests context.Context
}

func newMachine(t testing.TB) *machine {
	t.Helper()
	m := &machine{
		t: t, name: "node-1", dir: t.TempDir(), engine: dmcrypttest.New(),
		disks: map[string]*blktest.Disk{}, numbers: map[string]uint64{}, room: 1 << 44,
		keys: map[string]keyring.Provider{keyring.NameFile: named{provider(t, 1),
			keyring.NameFile}}, log: slog.New(slog.DiscardHandler),
	}
	m.store = &states{byVolume: map[string]volume.State{}, revision: map[string]int{}}
	m.mounts = &mounttest.System{Open: m.open, Hook: func(op, _ string) error {
		if op == "list" || op == "probe" || op == "usage" {
			return nil // It changes nothing, so a death here equals a death at the previous step.
		}
		return m.step("mount " + op)
	}}
	m.engine.Hook = func(op, _ string) error {
		if op == "list" || op == "lookup" || op == "probe" {
			return nil
		}
		return m.step("engine " + op)
	}
	return m
}

func secret(c byte) map[string]string {
	kek := make([]byte, keyring.KEKSize)
	for i := range kek {
		kek[i] = c + byte(i)
	}
	return map[string]string{keyring.SecretKey: base64.StdEncoding.EncodeToString(kek)}
}

func provider(t testing.TB, c byte) keyring.Provider {
	t.Helper()
	p, err := keyring.FromSecrets(secret(c))
	errtest.Must(t, err)
	return p
}

// named is a provider with another name.
type named struct {
	keyring.Provider
	name string
}

func (n named) Name() string { return n.name }

func (n named) Wrap(ctx context.Context, b keyring.Binding,
	key *keyring.Secret) (keyring.Wrapped, error) {
	w, err := n.Provider.Wrap(ctx, b, key)
	w.Provider = n.name
	return w, err
}

func (n named) Unwrap(ctx context.Context, b keyring.Binding,
	w keyring.Wrapped) (*keyring.Secret, error) {
	w.Provider = n.Provider.Name()
	return n.Provider.Unwrap(ctx, b, w)
}

// step is called before each operation of a process.
func (m *machine) step(string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.steps++
	if m.kill > 0 && (m.steps == m.kill || m.steps > m.kill && !m.goesOn) {
		if !m.goesOn {
			m.end()
		}
		return errDead
	}
	return nil
}

// process starts a new process of the driver that is killed at step kill, or never if kill is 0.
func (m *machine) process(kill int) *Driver {
	m.t.Helper()
	m.mu.Lock()
	m.steps, m.kill, m.goesOn = 0, 0, false
	m.mu.Unlock()
	set := volume.NewSet(volume.Config{
		Cluster: cluster, Node: m.name, Store: stepStore{m.store, m.step}, Engine: m.engine,
		Backend: memory{m}, Log: m.log,
		OpenDisk: func(path string, _ bool) (blk.Disk, error) {
			d := m.disk(filepath.Base(path))
			if d == nil {
				return nil, fs.ErrNotExist
			}
			return d, m.step("open disk")
		},
	})

	set.OpenBelow = m.below
	c := Config{Node: m.name, Version: "v0", Sets: map[string]*volume.Set{BackendFile: set},
		Keys: m.keys, Mounts: m.mounts, Log: m.log}
	if m.config != nil {
		m.config(&c)
	}
	d, err := New(c)
	errtest.Must(m.t, err)
	errtest.Must(m.t, d.Recover(m.t.Context()))

	requests, cancel := context.WithCancel(m.t.Context())
	m.t.Cleanup(cancel)
	m.mu.Lock()
	m.steps, m.kill, m.requests = 0, kill, requests
	m.end = func() { d.End(); cancel() }
	m.mu.Unlock()
	return d
}

// below returns the disk with that device number.
func (m *machine) below(number uint64) (blk.Reader, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for v, n := range m.numbers {
		if n == number {
			return m.disks[v], nil
		}
	}
	return nil, fs.ErrNotExist
}

func (m *machine) disk(v string) *blktest.Disk {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.disks[v]
}

// open returns the device of a mapping for the fake file systems: the disk of its volume, from the
// first byte of data.
func (m *machine) open(path string) (mounttest.Device, error) {
	ctx := context.Background()
	names, err := m.engine.List(ctx, dmcrypt.NamePrefixAll)
	if err != nil {
		return mounttest.Device{}, err
	}
	states, err := m.store.List(ctx)
	if err != nil {
		return mounttest.Device{}, err
	}
	for _, name := range names {
		mapping, err := m.engine.Lookup(ctx, name)
		if err != nil || mapping.Path != path {
			continue
		}
		for _, st := range states {
			if strings.HasPrefix(name, dmcrypt.NamePrefix(st.UUID)) {
				return mounttest.Device{Number: mapping.Number, Size: mapping.Targets[0].Length,
					Data: shifted{m.disk(st.Volume)}}, nil
			}
		}
	}
	return mounttest.Device{}, &fs.PathError{Op: "open", Path: path, Err: fs.ErrNotExist}
}

// shifted is the data of a volume.
type shifted struct{ *blktest.Disk }

func (s shifted) ReadAt(p []byte, off int64) (int, error) {
	return s.Disk.ReadAt(p, off+crypt.DataOffset)
}

func (s shifted) WriteAt(p []byte, off int64) (int, error) {
	n, err := s.Disk.WriteAt(p, off+crypt.DataOffset)
	return n, errors.Join(err, s.Sync())
}

// reboot removes all mappings and mounts.
func (m *machine) reboot() {
	m.engine.Reboot()
	m.mounts.Reboot()
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, d := range m.disks {
		d.PowerCut(nil)
	}
}

// path returns the path of a target without making it.
func (m *machine) path(name string) string { return filepath.Join(m.dir, name) }

// folder makes a folder, as kubelet does.
func (m *machine) folder(name string) string {
	errtest.Must(m.t, os.MkdirAll(m.path(name), 0o700))
	return m.path(name)
}

func (m *machine) state(id string) volume.State {
	m.t.Helper()
	st, _, err := m.store.Get(m.t.Context(), id)
	errtest.Must(m.t, err)
	return st
}

// client serves d on a socket and returns a connection to it.
func (m *machine) client(d *Driver) *grpc.ClientConn {
	m.t.Helper()
	path := filepath.Join(m.dir, "csi.sock")
	l, err := Listen(path)
	errtest.Must(m.t, err)
	s := NewServer(m.log, nil)
	d.Register(s)
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- Serve(ctx, s, l) }()
	conn, err := grpc.NewClient("unix:"+path,
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	errtest.Must(m.t, err)
	m.t.Cleanup(func() {
		conn.Close()
		stop()
		errtest.Check(m.t, <-done)
	})
	return conn
}

// mounted returns the capability of a volume with a file system. block returns the capability of a
// raw device.
func mounted(kind string) *csi.VolumeCapability {
	return &csi.VolumeCapability{
		AccessMode: &csi.VolumeCapability_AccessMode{
			Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
		AccessType: &csi.VolumeCapability_Mount{
			Mount: &csi.VolumeCapability_MountVolume{FsType: kind}},
	}
}

func block() *csi.VolumeCapability {
	return &csi.VolumeCapability{
		AccessMode: &csi.VolumeCapability_AccessMode{
			Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
		AccessType: &csi.VolumeCapability_Block{Block: &csi.VolumeCapability_BlockVolume{}},
	}
}
