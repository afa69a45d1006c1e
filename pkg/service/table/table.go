package table

import (
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/cilium/ebpf"

	"github.com/kubeveil/kubeveil/internal/bpfobj"
	"github.com/kubeveil/kubeveil/pkg/service"
)

// Sentinels for callers. Each is wrapped in a message with a remedy.
var (
	// ErrNotPermitted matches when the process may not use BPF.
	ErrNotPermitted = bpfobj.ErrNotPermitted
	// ErrNotSupported is that of a kernel without what is needed; see FeatureError.
	ErrNotSupported = bpfobj.ErrNotSupported
	// ErrNoBPFFS matches when the directory for pins is not on a bpffs.
	ErrNoBPFFS = bpfobj.ErrNoBPFFS
	// ErrNoCgroup is that of a path that is no cgroup of the second version, or of a machine where
	// none is mounted.
	ErrNoCgroup = errors.New("no cgroup v2")
)

// Config is what a table is made of.
type Config struct {
	// Dir is where maps and links are pinned, on a mounted bpffs; Open makes it and its parents
	// there.
	Dir string
	// Limits are the sizes of the maps of the table; zero is service.DefaultLimits. Give the
	// planner the same.
	Limits service.Limits
	// Memory is the sizes of the maps that remember; zero fields are those of DefaultMemory.
	Memory Memory
	// Links reports whether the programs at links are loaded too; AttachLinks attaches them. They
	// need the maps of the guard, which must have been opened in Dir.
	Links bool
	// TunnelPort is the UDP port of tunnels: what comes for it to a node's address is no service's.
	// 0 is none.
	TunnelPort uint16
	// HostRouting reports whether the programs at links send what is for a pod of this node, and
	// what pods answer to clients of services outside, from link to link, past netfilter.
	HostRouting bool
	// Log says what is adopted and replaced.
	Log *slog.Logger
}

// Memory is the sizes, in entries, of the maps that forget the least recently used entry when they
// are full.
type Memory struct {
	// Clients is of services with affinity: which backend a client had.
	Clients uint32
	// Replies is as which service a socket knows a backend: each socket that is
	// connected to a service has an entry.
	Replies uint32
	// Sends is where the datagrams of unconnected sockets go.
	Sends uint32
	// Flows is connections of packets, three entries each, four where this node sends them, and one
	// more of a client inside. An address inside can have a 128th part of this in connections; then
	// those that it used least give way.
	Flows uint32
}

// DefaultMemory is for a node with some hundred pods.
var DefaultMemory = Memory{Clients: 1 << 16, Replies: 1 << 17, Sends: 1 << 16, Flows: 1 << 19}

// Table is the maps and programs of one node. Its methods may be called
// concurrently, but for what is planned from State and written by Apply there must be one caller.
type Table struct {
	dir      string
	log      *slog.Logger
	limits   service.Limits
	features Features
	maps     map[string]*ebpf.Map     // by name, which is their pin
	progs    map[string]*ebpf.Program // by name; loaded, attached or not
	fresh    bool                     // see Fresh
	hadFlows bool                     // whether there was a table of flows before
	patience time.Duration            // podPatience
	routing  bool                     // Config.HostRouting

	mu sync.Mutex // held while links and pins change

	callers struct {
		sync.Mutex
		at   time.Time // when they were last counted
		used uint32
		rest time.Duration // callersRest
	}
}

// Open probes the kernel, loads the programs and makes and pins the maps, or adopts those that are
// pinned. Pinned maps of the table of another size are left to the programs that are attached and
// use them, and give their pins to new ones with the same content, as far as it has room;
// AttachSockets then puts the programs that read these in the others' place. Of maps of another
// layout the content is not known: see Fresh. Nothing is attached by Open. Errors are
// ErrNotPermitted, ErrNoBPFFS, *FeatureError, service.ErrLimits.
func Open(c Config) (*Table, error) {
	fail := func(err error) (*Table, error) {
		return nil, fmt.Errorf("open table of services in %s: %w", c.Dir, err)
	}
	features, err := probeKernel()
	if err != nil {
		return fail(err)
	}
	all, err := specs(features)
	if err != nil {
		return fail(err)
	}
	c = c.complete()
	if c.Links {
		spec, err := packetSpec(c.TunnelPort, c.Memory.Flows, c.HostRouting)
		if err != nil {
			return fail(err)
		}
		all = append(all, spec)
	}
	t, err := open(c, features, all)
	if err != nil {
		return fail(err)
	}
	return t, nil
}

// Close lets go of the table, which stays in force.
func (t *Table) Close() error {
	var errs []error
	for _, m := range t.maps {
		errs = append(errs, m.Close())
	}
	for _, p := range t.progs {
		errs = append(errs, p.Close())
	}
	return errors.Join(errs...)
}

// Features is what Open found out about the kernel.
func (t *Table) Features() Features { return t.features }

// Fresh reports whether the table is empty although programs are attached that read another one:
// its layout is of another version. They serve what they did until AttachLinks and AttachSockets
// put this version's in their place: write the whole table first.
func (t *Table) Fresh() bool { return t.fresh }

// Limits are the sizes of the maps of the table.
func (t *Table) Limits() service.Limits { return t.limits }

// open opens a table of these programs for a kernel with these features.
func open(c Config, features Features, all []*ebpf.CollectionSpec) (*Table, error) {
	c = c.complete()
	// The planner knows which sizes a table can have.
	if _, err := service.New("", c.Limits); err != nil {
		return nil, err
	}
	if err := bpfobj.MakeDir(c.Dir); err != nil {
		return nil, err
	}
	t := &Table{
		dir: c.Dir, log: c.Log, limits: c.Limits, features: features,
		maps: make(map[string]*ebpf.Map), progs: make(map[string]*ebpf.Program),
		patience: podPatience, routing: c.HostRouting,
	}
	t.callers.rest = podClientsRest
	if err := t.load(all, c); err != nil {
		t.Close()
		return nil, err
	}
	return t, nil
}

// complete has what is not given filled in.
func (c Config) complete() Config {
	if c.Limits == (service.Limits{}) {
		c.Limits = service.DefaultLimits
	}
	for size, normal := range map[*uint32]uint32{
		&c.Memory.Clients: DefaultMemory.Clients, &c.Memory.Replies: DefaultMemory.Replies,
		&c.Memory.Sends: DefaultMemory.Sends, &c.Memory.Flows: DefaultMemory.Flows,
	} {
		if *size == 0 {
			*size = normal
		}
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return c
}

// sizes are how many entries the maps have, by name; a map that is not in it has what its program
// says.
func (c Config) sizes() map[string]uint32 {
	return map[string]uint32{
		mapFrontends: c.Limits.Frontends, mapBackends: c.Limits.BackendSlots,
		mapMembers:      c.Limits.Members,
		mapSourceRanges: c.Limits.SourceRanges,
		mapAffinity:     c.Memory.Clients, mapReplies: c.Memory.Replies, mapSends: c.Memory.Sends,
		mapFlows: c.Memory.Flows,
	}
}
