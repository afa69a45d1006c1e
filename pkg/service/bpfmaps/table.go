package bpfmaps

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/bits"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/bpfobj"
	"github.com/kubeveil/kubeveil/pkg/service"
	"github.com/kubeveil/kubeveil/pkg/service/planner"
	"github.com/kubeveil/kubeveil/pkg/service/probe"
	"github.com/kubeveil/kubeveil/pkg/service/slots"
)

// Config describes the table that Open makes.
type Config struct {
	// Dir is the directory of the pins of maps and links, on a mounted bpffs. Open makes it and its
	// parents.
	Dir string
	// Limits holds the sizes of the maps of the table.
	Limits service.Limits
	// Memory holds the sizes of the LRU maps. A zero field means the size for this node's memory:
	// MemoryFor.
	Memory Memory
	// Links loads the programs at links too. Package link attaches them. They need the maps of
	// the guard, which must have been opened in Dir.
	Links bool
	// ConnectOnly loads and attaches only the programs at connect and getpeername, which are all
	// that TCP needs. Datagrams of unconnected sockets are then not translated. Call Remove first
	// if the table in Dir has more programs.
	ConnectOnly bool
	// Only, if it is not empty, has the names of the programs that Open loads. The verifier takes
	// most of the time of Open, and tests attach few programs.
	Only []string
	// TunnelPort is the UDP port of tunnels. A packet to it at a node's address never belongs to a
	// service. 0 means that there is no such port.
	TunnelPort uint16
	// PodCgroupLevel is the level of the cgroups of pods in their tree, see probe.PodLevel. 0 means
	// that it is not known: samples of refusals then have a share for each cgroup.
	PodCgroupLevel uint32
	// Log receives which maps and programs are adopted or replaced.
	Log *slog.Logger
}

// Memory holds the sizes, in entries, of the LRU maps. They evict the least recently used entry
// when they are full.
type Memory struct {
	// Clients and Outside are the maps of session affinity. They have the last backend of each
	// client in the cluster, and of each client outside.
	Clients, Outside uint32
	// Replies and Sends are the maps of service addresses and of backends by socket. Only UDP
	// sockets that use several services are there. The last service of each socket is in storage
	// that goes with the socket.
	Replies, Sends uint32
	// TCP, Opening and UDP are the flow tables: established connections, connections that are
	// being opened, and flows of UDP. Each flow has two entries, or four with SNAT.
	TCP, Opening, UDP uint32
	// Quotas is the map of the flows of each client in the cluster. The quota of a client is TCP/64
	// flows, or less if Opening or UDP is small. At the limit its closed or longest idle flow is
	// evicted.
	Quotas uint32
}

// bytesPerFlow is the memory of a node for each entry of Memory.TCP. The four maps of flows
// together have twice as many entries, of about 140 bytes each. That is 0.6 % to 1.2 % of the
// memory.
const bytesPerFlow = 24 << 10

// Bounds of the default size of Memory.TCP. The largest maps of flows have 144 MiB together, for
// which the memory limit of veild's container has room (manifests/components/services). They have
// as many flows as the kernel's conntrack by default, 262,144.
const minTCP, maxTCP = 1 << 14, 1 << 19

// MemoryFor returns the sizes for a node with this many bytes of memory. The sizes of the maps of
// flows are powers of two, so that the maps keep their size on a kernel that sees slightly less
// memory.
func MemoryFor(bytes uint64) Memory {
	tcp := min(max(bytes/bytesPerFlow, minTCP), maxTCP)
	tcp = 1 << (bits.Len64(tcp) - 1)
	return Memory{Clients: 1 << 15, Outside: 1 << 15, Replies: 1 << 13, Sends: 1 << 13,
		TCP: uint32(tcp), Opening: uint32(tcp / 4), UDP: uint32(tcp / 2), Quotas: uint32(tcp / 4)}
}

// defaultMemory returns the sizes for this node.
func defaultMemory() Memory {
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		return MemoryFor(0) // sysinfo(2) fails only for a bad pointer
	}
	return MemoryFor(uint64(info.Totalram) * uint64(info.Unit))
}

// byMap returns the fields of m by the name of their map.
func (m *Memory) byMap() map[string]*uint32 {
	return map[string]*uint32{mapAffinity: &m.Clients, mapOutside: &m.Outside,
		mapReplies: &m.Replies, mapSends: &m.Sends, MapTCP: &m.TCP, MapOpening: &m.Opening,
		MapUDP: &m.UDP, MapQuotas: &m.Quotas}
}

// APIMemory is the Memory of a table with ConnectOnly that holds only entry 0, with
// service.APILimits. Its UDP sockets have no services, and TCP sockets use none of these maps.
var APIMemory = Memory{Clients: 64, Outside: 64, Replies: 64, Sends: 64, TCP: 64, Opening: 64,
	UDP: 64, Quotas: 64}

// Table holds the maps and programs of one node. Its methods may be called concurrently, except
// that one caller plans from State and writes by Apply.
type Table struct {
	dir      string
	log      *slog.Logger
	limits   service.Limits
	features probe.Features
	maps     map[string]*ebpf.Map     // by name, which is their pin
	slots    *slots.Slots             // in maps[mapBackends]
	progs    map[string]*ebpf.Program // by name; loaded, attached or not
	fresh    bool                     // see Fresh
	hooks    []socketHook             // of the loaded programs, in the order of attaching
	links    bool                     // Config.Links
	mostUDP  int                      // mostGiven
	crowded  atomic.Bool              // whether the last AbortUDP found more sockets in a namespace

	mu     sync.Mutex // held while programs at sockets and their pins change
	former former

	remembered struct {
		sync.Mutex
		at   time.Time // when they were last counted
		used Memory
	}
}

// Open probes the kernel, loads the programs, and creates and pins the maps or adopts pinned ones.
// It attaches nothing. Errors match those of package bpfobj.
func Open(c Config) (*Table, error) {
	fail := func(err error) (*Table, error) {
		return nil, fmt.Errorf("open table of services in %s: %w", c.Dir, err)
	}
	features, err := probe.Kernel()
	if c.Links {
		err = errors.Join(err, probe.Links())
	}
	if err != nil {
		return fail(err)
	}

	all, err := specs(features)
	if err == nil {
		err = bpfobj.Set(all[0], map[string]any{"pod_cgroup_level": c.PodCgroupLevel})
	}
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
		spec, err := packetSpec(c.TunnelPort, c.Memory, c.Log)
		if err != nil {
			return fail(err)
		}
		all = append(all, spec)
	}
	if len(c.Only) > 0 {
		for _, spec := range all {
			maps.DeleteFunc(spec.Programs, func(name string, _ *ebpf.ProgramSpec) bool {
				return !slices.Contains(c.Only, name)
			})
		}
	}

	t, err := open(c, features, all)
	if err != nil {
		return fail(err)
	}
	return t, nil
}

// Close closes the maps and programs. The table stays in force.
func (t *Table) Close() error {
	var errs []error
	if t.slots != nil {
		errs = append(errs, t.slots.Close())
	}
	for _, m := range t.maps {
		errs = append(errs, m.Close())
	}
	for _, p := range t.progs {
		errs = append(errs, p.Close())
	}
	for _, f := range t.former.maps {
		errs = append(errs, f.Close())
	}
	return errors.Join(errs...)
}

// Features returns the features of the kernel that Open found.
func (t *Table) Features() probe.Features { return t.features }

// Fresh reports whether the table is empty although attached programs read another table, whose
// layout belongs to another version. They read that table until they are replaced. So the caller
// must write the whole table before AttachSockets and before package link attaches.
func (t *Table) Fresh() bool { return t.fresh }

// Program returns a loaded program by its name, or nil. The Table owns it.
func (t *Table) Program(name string) *ebpf.Program { return t.progs[name] }

// Map returns an open map by its name, or nil. The Table owns it.
func (t *Table) Map(name string) *ebpf.Map { return t.maps[name] }

// Memory returns the sizes of the LRU maps. Without links, sizes of flow tables are 0.
func (t *Table) Memory() Memory {
	var sizes Memory
	for name, size := range sizes.byMap() {
		if m := t.maps[name]; m != nil {
			*size = m.MaxEntries()
		}
	}
	return sizes
}

// open opens a table with the programs of all on a kernel with these features.
func open(c Config, features probe.Features, all []*ebpf.CollectionSpec) (*Table, error) {
	c = c.complete()
	// The planner knows which sizes are valid.
	if _, err := planner.New("", c.Limits); err != nil {
		return nil, err
	}
	if err := bpfobj.MakeDir(c.Dir); err != nil {
		return nil, err
	}
	t := &Table{
		dir: c.Dir, log: c.Log, limits: c.Limits, features: features,
		maps: make(map[string]*ebpf.Map), progs: make(map[string]*ebpf.Program),
		hooks: socketHooks, links: c.Links, mostUDP: mostGiven,
		former: former{replaced: make(map[Hooks]bool)},
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
	normal := defaultMemory()
	for name, size := range c.Memory.byMap() {
		if *size == 0 {
			*size = *normal.byMap()[name]
		}
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return c
}

// sizes returns the sizes of maps by name, besides mapBackends. Other maps have the size in their
// program.
func (c Config) sizes() map[string]uint32 {
	sizes := map[string]uint32{mapFrontends: c.Limits.Frontends,
		mapSourceRanges: c.Limits.SourceRanges}
	for name, size := range c.Memory.byMap() {
		sizes[name] = *size
	}
	return sizes
}
