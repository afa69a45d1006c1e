package driver

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sync/singleflight"
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
	// Sets holds a volume.Set per backend, keyed by BackendFile or BackendDisk. At least one is
	// needed. The Sets must share store, engine and locks.
	Sets map[string]*volume.Set
	// Keys holds the key providers by name. It may be empty: a provider whose key comes with each
	// request (keyring.NameSecret) needs no entry.
	Keys map[string]keyring.Provider
	// Defaults are the values of parameters that a class leaves out. An empty field means the first
	// value that is known and configured.
	Defaults Parameters
	Mounts   mount.System
	// PrivateMounts allows targets whose mounts do not reach the host: for a driver that shares the
	// kubelet's mount namespace, or runs without a kubelet.
	PrivateMounts bool
	// TakeOver returns the lost node from which this node may take a volume over, or an empty
	// string if there is none. On the node that was declared gone, it returns a *volume.TakenError.
	// Nil means that no volume may be taken over.
	TakeOver func(ctx context.Context, volume string) (string, error)
	// Cache serves reads that may be stale: statistics, health and upkeep. Nil means the store.
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
	// anySet is one of the Sets. It gives access to the store, engine and locks that all share.
	anySet *volume.Set
	// fromSecrets is keyring.FromSecrets.
	fromSecrets func(map[string]string) (keyring.Provider, error)
	// ending is closed by End, which abandons copies.
	ending  chan struct{}
	endOnce sync.Once

	// reads shares the disk queries that are under way, keyed by the question of read.
	reads singleflight.Group

	mu sync.Mutex
	// busy holds the ids of volumes that a call has locked.
	busy map[string]bool
	// records holds the names of mappings whose disk's records are being read.
	records map[string]bool
	// fenced and unsealed count the volumes that were fenced, and closed unsealed.
	fenced, unsealed atomic.Int64
	// strays maps mappings to volumes, and counts failed look-ups.
	strays *strays
	// unused remembers the mappings that no pod uses.
	unused *unused
	// holders returns the users of a device other than mounts. It is blk.Holders, except in tests.
	holders func(number uint64) []string
	// notify receives notices. If notify is nil, they are dropped.
	notify func(Notice)
	// refusals holds the kind of the last refusal that upkeep met, keyed by volume.
	refusals map[string]crypt.Kind
}

// New checks c and returns a driver. It does not read or change disks, mappings or mounts.
func New(c Config) (*Driver, error) {
	d := &Driver{
		Config: c, fromSecrets: keyring.FromSecrets, ending: make(chan struct{}),
		busy: map[string]bool{}, records: map[string]bool{},
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

// reader returns the Cache, or the store without one, for reads that may be stale.
func (d *Driver) reader() volume.Reader {
	if d.Cache == nil {
		return d.anySet.Store
	}
	return d.Cache
}

// lock locks a volume against other calls until the caller calls unlock. It returns
// volume.ErrInProgress if another call has the lock.
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

// CheckMounts returns an error if mounts in dir do not reach the host. Pods would then write, in
// clear, to the folder below the mount.
func (d *Driver) CheckMounts(dir string) error {
	if d.PrivateMounts {
		return nil
	}
	return d.Mounts.CheckShared(dir)
}

// set returns the Set of the backend that st names.
func (d *Driver) set(st volume.State) (*volume.Set, error) {
	set := d.Sets[st.Request.Backend]
	if set == nil {
		return nil, fmt.Errorf("volume %s: its backend %q is not configured on node %s", st.Volume,
			st.Request.Backend, d.Node)
	}
	return set, nil
}

// End abandons copies that are under way or requested later. Suspended sources resume at once. Call
// it before the process ends, and before waiting for calls.
func (d *Driver) End() { d.endOnce.Do(func() { close(d.ending) }) }

// Recover resumes mappings that an earlier process left suspended. Call it when the driver starts,
// and repeat it until it returns nil. The driver may serve calls meanwhile.
func (d *Driver) Recover(ctx context.Context) error { return d.anySet.Resume(ctx) }

// ResumeMarked resumes the suspended mappings that it can find without the store
// (volume.Set.ResumeMarked). So it works while the API server is away.
func (d *Driver) ResumeMarked(ctx context.Context) error { return d.anySet.ResumeMarked(ctx) }
