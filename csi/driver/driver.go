package driver

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"

	"github.com/kubeveil/kubeveil/csi/crypt"
	"github.com/kubeveil/kubeveil/csi/internal/blk"
	"github.com/kubeveil/kubeveil/csi/keyring"
	"github.com/kubeveil/kubeveil/csi/mount"
	"github.com/kubeveil/kubeveil/csi/volume"
)

const (
	// Name is the name of the driver, in StorageClasses and CSIDriver.
	Name = "csi.kubeveil.io"
	// TopologyKey is the label that names a volume's node.
	TopologyKey = "topology.csi.kubeveil.io/node"
)

// Config holds the dependencies of a driver. All but PrivateMounts, TakeOver, Cache and Log must be
// set.
type Config struct {
	// Node is the name of this node, Version the version of this program.
	Node, Version string
	// Sets are the volumes by the name of their backend: BackendFile, BackendDisk. At least one is
	// needed. They share store, engine and locks.
	Sets map[string]*volume.Set
	// Keys are the providers by name, except those whose key comes with a request. It may be empty.
	Keys map[string]keyring.Provider
	// Defaults are the values of parameters that a class leaves out. A zero field is the first
	// configured value.
	Defaults Parameters
	Mounts   mount.System
	// PrivateMounts allows targets whose mounts do not reach the host: for a driver that shares the
	// kubelet's mount namespace, or runs without a kubelet.
	PrivateMounts bool
	// TakeOver returns the node that a volume may be taken over from because it is gone, or an
	// empty string. It returns a *volume.TakenError on the node that was declared gone.
	TakeOver func(ctx context.Context, volume string) (string, error)
	// Cache answers reads that decide nothing: statistics, health, and upkeep. Nil means the store.
	Cache volume.Reader
	// Log may be nil.
	Log *slog.Logger
}

// Driver serves CSI. Its methods may be called from several goroutines.
type Driver struct {
	csi.UnimplementedIdentityServer
	csi.UnimplementedControllerServer
	csi.UnimplementedNodeServer

	Config
	// anySet is one of the Sets, for what they share: store, engine and locks.
	anySet *volume.Set
	// fromSecrets is keyring.FromSecrets.
	fromSecrets func(map[string]string) (keyring.Provider, error)
	// ending is closed to abandon copies.
	ending  chan struct{}
	endOnce sync.Once

	mu   sync.Mutex
	busy map[string]bool
	// reads are the queries to disks that are under way, by question.
	reads map[string]*reading
	// records are the mappings whose disks are being read, by name.
	records map[string]bool
	// fenced and unsealed count what happened to volumes.
	fenced, unsealed atomic.Int64
	// strays are mappings without a known volume.
	strays *strays
	// unused are mappings that no pod has.
	unused *unused
	// holders returns what holds a device beside mounts: blk.Holders, other in tests.
	holders func(number uint64) []string
	// notify receives notices; nil drops them.
	notify func(Notice)
	// refusals are the kinds of refusals that upkeep met last, by volume.
	refusals map[string]crypt.Kind
}

// New checks c and returns a driver. It touches nothing.
func New(c Config) (*Driver, error) {
	d := &Driver{
		Config: c, fromSecrets: keyring.FromSecrets, ending: make(chan struct{}),
		busy: map[string]bool{}, reads: map[string]*reading{}, records: map[string]bool{},
		holders: func(n uint64) []string { return blk.Holders(blk.Sys(), n) },
		strays:  newStrays(), unused: newUnused(), refusals: map[string]crypt.Kind{},
	}
	if d.Log == nil {
		d.Log = slog.New(slog.DiscardHandler)
	}

	if d.TakeOver == nil {
		d.TakeOver = func(context.Context, string) (string, error) { return "", nil }
	}

	for _, name := range backends {
		set := d.Sets[name]
		if set == nil {
			continue
		}
		set.Happened = d.Happened
		if d.anySet == nil {
			d.anySet = set
		}
	}

	if d.anySet == nil || d.Node == "" || d.Mounts == nil {
		return nil, fmt.Errorf("driver: no node, no mounts, or none of the backends %v", backends)
	}

	var err error
	d.Defaults, err = d.complete(c.Defaults)
	return d, err
}

// Register adds the services to s.
func (d *Driver) Register(s *grpc.Server) {
	csi.RegisterIdentityServer(s, d)
	csi.RegisterControllerServer(s, d)
	csi.RegisterNodeServer(s, d)
}

// reader returns the reader for what decides nothing.
func (d *Driver) reader() volume.Reader {
	if d.Cache == nil {
		return d.anySet.Store
	}
	return d.Cache
}

// lock excludes other calls from the volume until unlock; ErrInProgress when one holds it.
func (d *Driver) lock(id string) (unlock func(), err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.busy[id] {
		return nil, fmt.Errorf("volume %s: %w", id, volume.ErrInProgress)
	}
	d.busy[id] = true
	return func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		delete(d.busy, id)
	}, nil
}

// CheckMounts refuses a folder whose mounts do not reach the host: pods would write, in clear, to
// the folder below.
func (d *Driver) CheckMounts(dir string) error {
	if d.PrivateMounts {
		return nil
	}
	return d.Mounts.CheckShared(dir)
}

// set returns the Set of the volume with that state.
func (d *Driver) set(st volume.State) (*volume.Set, error) {
	set := d.Sets[st.Request.Backend]
	if set == nil {
		return nil, fmt.Errorf("volume %s: its backend %q is not configured on node %s", st.Volume,
			st.Request.Backend, d.Node)
	}
	return set, nil
}

// End abandons copies that are under way or requested later; suspended sources resume at once. Call
// it before the process ends, and before waiting for calls.
func (d *Driver) End() { d.endOnce.Do(func() { close(d.ending) }) }

// Recover resumes mappings that an earlier process left suspended. Call it when the driver starts,
// and again while it returns an error. Calls may be served meanwhile.
func (d *Driver) Recover(ctx context.Context) error { return d.anySet.Resume(ctx) }

// ResumeMarked is the part of Recover that needs no store: it works while the API server is away
// (volume.Set.ResumeMarked).
func (d *Driver) ResumeMarked(ctx context.Context) error { return d.anySet.ResumeMarked(ctx) }
