package bpfmaps

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"

	"github.com/cilium/ebpf"

	"github.com/kubeveil/kubeveil/internal/bpfobj"
	"github.com/kubeveil/kubeveil/pkg/service"
	"github.com/kubeveil/kubeveil/pkg/service/probe"
)

// Errors that callers may distinguish. Each is wrapped in a message with a remedy.
var (
	// ErrNotPermitted is the error of a process that may not use BPF.
	ErrNotPermitted = bpfobj.ErrNotPermitted
	// ErrNotSupported is the error of a kernel that lacks a feature; see probe.FeatureError.
	ErrNotSupported = bpfobj.ErrNotSupported
	// ErrNoBPFFS is the error of a pin directory that is not on a bpffs.
	ErrNoBPFFS = bpfobj.ErrNoBPFFS
)

// Config describes the table that Open makes.
type Config struct {
	// Dir is the directory of the pins of maps and links, on a mounted bpffs. Open makes it and its
	// parents.
	Dir string
	// Limits holds the sizes of the maps of the table.
	Limits service.Limits
	// Memory holds the sizes of the LRU maps. A zero field means the size in DefaultMemory.
	Memory Memory
	// Links loads the programs at links too. Package link attaches them. They need the maps of
	// the guard, which must have been opened in Dir.
	Links bool
	// ConnectOnly loads and attaches only the programs at connect and getpeername, which are all
	// that TCP needs. Datagrams of unconnected sockets are then not translated. Call Remove before
	// you open a table in this way that had more programs.
	ConnectOnly bool
	// TunnelPort is the UDP port of tunnels. A packet to it at a node's address never belongs to a
	// service. 0 means that there is no such port.
	TunnelPort uint16
	// HostRouting lets the programs at links send packets from link to link, past netfilter:
	// those for a pod of this node, and replies of pods to external clients of services.
	HostRouting bool
	// Log receives what is adopted and replaced.
	Log *slog.Logger
}

// Memory holds the sizes, in entries, of the LRU maps. They evict the least recently used entry
// when they are full.
type Memory struct {
	// Clients is the map of session affinity: which backend a client had.
	Clients uint32
	// Replies is the map of service addresses by socket and backend. Each socket that is
	// connected to a service has an entry.
	Replies uint32
	// Sends is the map of backends of unconnected UDP sockets.
	Sends uint32
	// Flows is the flow table: three entries for each flow, one more with SNAT, and one more
	// for a client in the cluster. A client in the cluster has a quota of a 128th part of the
	// table in flows. At the limit its closed or longest idle flow is evicted.
	Flows uint32
}

// DefaultMemory is for a node with some hundred pods.
var DefaultMemory = Memory{Clients: 1 << 16, Replies: 1 << 17, Sends: 1 << 16, Flows: 1 << 19}

// APIMemory is for a table with ConnectOnly and entry 0 alone, with service.APILimits. If more
// sockets than Replies are connected to API servers, getpeername of the least recently used sockets
// returns the server's address instead of the service's.
var APIMemory = Memory{Clients: 64, Replies: 1 << 14, Sends: 64, Flows: 64}

// Table is the maps and programs of one node. Its methods may be called concurrently, except that
// one caller plans from State and writes by Apply.
type Table struct {
	dir      string
	log      *slog.Logger
	limits   service.Limits
	features probe.Features
	maps     map[string]*ebpf.Map     // by name, which is their pin
	progs    map[string]*ebpf.Program // by name; loaded, attached or not
	fresh    bool                     // see Fresh
	hadFlows bool                     // whether there was a table of flows before
	routing  bool                     // Config.HostRouting
	hooks    []socketHook             // of the loaded programs, in the order of attaching

	mu sync.Mutex // held while programs at sockets and their pins change
}

// Open probes the kernel, loads the programs, and creates and pins the maps or adopts pinned ones.
// It attaches nothing.
func Open(c Config) (*Table, error) {
	fail := func(err error) (*Table, error) {
		return nil, fmt.Errorf("open table of services in %s: %w", c.Dir, err)
	}
	features, err := probe.Kernel()
	if err != nil {
		return fail(err)
	}

	all, err := specs(features)
	if err != nil {
		return fail(err)
	}
	c = c.complete()
	if c.ConnectOnly {
		maps.DeleteFunc(all[0].Programs, func(name string, _ *ebpf.ProgramSpec) bool {
			return !slices.ContainsFunc(connectHooks,
				func(h socketHook) bool { return h.program == name })
		})
	}

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

// Close closes the table, which stays in force.
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

// Features returns the features of the kernel that Open found.
func (t *Table) Features() probe.Features { return t.features }

// Fresh reports whether the table is empty although attached programs read another one: its layout
// belongs to another version. They read the other table until they are replaced. So write the whole
// table before AttachSockets and before package link attaches.
func (t *Table) Fresh() bool { return t.fresh }

// HostRouting reports whether the programs at links were loaded with Config.HostRouting.
func (t *Table) HostRouting() bool { return t.routing }

// Program returns a loaded program by its name, or nil. The Table owns it.
func (t *Table) Program(name string) *ebpf.Program { return t.progs[name] }

// Map returns an open map by its name, or nil. The Table owns it.
func (t *Table) Map(name string) *ebpf.Map { return t.maps[name] }

// Limits returns the sizes of the maps of the table.
func (t *Table) Limits() service.Limits { return t.limits }

// open opens a table of these programs on a kernel with these features.
func open(c Config, features probe.Features, all []*ebpf.CollectionSpec) (*Table, error) {
	c = c.complete()
	// The planner knows which sizes are valid.
	if _, err := service.New("", c.Limits); err != nil {
		return nil, err
	}
	if err := bpfobj.MakeDir(c.Dir); err != nil {
		return nil, err
	}
	t := &Table{
		dir: c.Dir, log: c.Log, limits: c.Limits, features: features,
		maps: make(map[string]*ebpf.Map), progs: make(map[string]*ebpf.Program),
		routing: c.HostRouting, hooks: socketHooks,
	}
	if c.ConnectOnly {
		t.hooks = connectHooks
	}
	if err := t.load(all, c); err != nil {
		t.Close()
		return nil, err
	}
	return t, nil
}

// complete returns c with defaults for fields that are not set.
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

// sizes returns the sizes of maps by name. Other maps have the size in their program.
func (c Config) sizes() map[string]uint32 {
	return map[string]uint32{
		mapFrontends: c.Limits.Frontends, mapBackends: c.Limits.BackendSlots,
		mapMembers:      c.Limits.Members,
		mapSourceRanges: c.Limits.SourceRanges,
		mapAffinity:     c.Memory.Clients, mapReplies: c.Memory.Replies, mapSends: c.Memory.Sends,
		MapFlows: c.Memory.Flows,
	}
}
