package flow

import (
	"errors"
	"fmt"
	"hash/maphash"
	"maps"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/kubeveil/kubeveil/internal/nft"
	"github.com/kubeveil/kubeveil/internal/nl"
	"github.com/kubeveil/kubeveil/pkg/cluster"
	"github.com/kubeveil/kubeveil/pkg/config"
	"github.com/kubeveil/kubeveil/pkg/feature"
	"github.com/kubeveil/kubeveil/pkg/pod"
	"github.com/kubeveil/kubeveil/pkg/service/bpfmaps"
	"github.com/kubeveil/kubeveil/pkg/telemetry"
	"github.com/kubeveil/kubeveil/pkg/telemetry/admin"
)

// formerKept bounds the addresses of deleted nodes that a Feature remembers.
const formerKept = 4096

// FeatureConfig configures a Feature. All functions must be set, except Services, Opened and
// ServiceAddrs.
type FeatureConfig struct {
	Config config.Config
	Paths  pod.Paths
	// Drops returns the samples of dropped packets.
	Drops func() []telemetry.DroppedPacket
	// Services calls its argument for each flow in the flow table of services, until the argument
	// returns false. Nil means that there is no such table.
	Services func(func(bpfmaps.Flow) bool) error
	// Opened returns the TCP connections of the fast path. Nil means that there is no fast path.
	Opened func() ([]nl.Opened, error)
	// ServiceAddrs returns addresses that services had and none has now, and addresses of load
	// balancers that no program on a node translates. Nil means that veild does not know services.
	ServiceAddrs func() (former, balancers []netip.Addr)
	// Guard reads and returns the guard's present state.
	Guard func() (telemetry.Guard, error)
	// Tunnels reads and returns the present tunnel devices and their peers.
	Tunnels func() ([]telemetry.Device, []telemetry.Peer, error)
}

// Feature shows the connections of a node on a page of the agent's admin socket. Make it with
// NewFeature. It only works during a request.
type Feature struct {
	feature.None
	o    FeatureConfig
	seed maphash.Seed

	// reading is held during a request. It guards conn. conn stays open between requests, because
	// closing a socket would delay nftables transactions (see package nfnl).
	reading sync.Mutex
	conn    *nft.Conn

	mu sync.Mutex // guards the fields below
	// table holds the verified nodes; its content is not changed. former holds the addresses of
	// deleted nodes.
	table  cluster.Table
	former map[netip.Addr]bool
}

// NewFeature returns a Feature. It knows no nodes before the first Turn.
func NewFeature(o FeatureConfig) *Feature {
	return &Feature{o: o, seed: maphash.MakeSeed(), former: map[netip.Addr]bool{}}
}

// Turn receives the verified nodes.
func (f *Feature) Turn(t feature.Turn) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !slices.Equal(f.table.NodeAddrs, t.Table.NodeAddrs) {
		f.rememberLocked(f.table.NodeAddrs, t.Table.NodeAddrs)
	}
	f.table = t.Table
	return nil
}

// rememberLocked adds the node addresses that are missing in now to f.former, and removes those
// that are in now. Both lists are sorted.
func (f *Feature) rememberLocked(before, now []netip.Addr) {
	for _, a := range before {
		if _, has := slices.BinarySearchFunc(now, a, netip.Addr.Compare); !has &&
			len(f.former) < formerKept {
			f.former[a] = true
		}
	}
	for _, a := range now {
		delete(f.former, a)
	}
}

// stated returns what the last Turn stated: the names of nodes by address, the prefixes of pods
// and services, and the addresses of deleted nodes.
func (f *Feature) stated() (nodes map[netip.Addr]string, prefixes []netip.Prefix,
	former map[netip.Addr]bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	nodes = make(map[netip.Addr]string, len(f.table.NodeAddrs))
	for _, a := range f.table.NodeAddrs {
		nodes[a] = "a node"
	}
	prefixes = slices.Clone(f.table.ServiceRanges)
	for _, node := range slices.Concat(f.table.Peers, f.table.Keyless) {
		for _, a := range node.Addresses {
			nodes[a] = node.Name
		}
		prefixes = append(prefixes, node.PodPrefixes...)
	}
	return nodes, prefixes, maps.Clone(f.former)
}

// Close closes the socket by which requests read conntrack.
func (f *Feature) Close() error {
	f.reading.Lock()
	defer f.reading.Unlock()
	return f.closeLocked()
}

func (f *Feature) closeLocked() (err error) {
	if f.conn != nil {
		err, f.conn = f.conn.Close(), nil
	}
	return err
}

// Pages returns the admin socket's page of connections.
func (f *Feature) Pages() map[string]admin.Page {
	return map[string]admin.Page{telemetry.FlowsPath: f.page}
}

// query selects connections. An empty field selects all connections.
type query struct {
	pod     string
	classes []telemetry.FlowClass
}

func (q query) matches(f telemetry.Flow) bool {
	return (q.pod == "" || f.ClientPod == q.pod || f.ServerPod == q.pod) &&
		(len(q.classes) == 0 || slices.Contains(q.classes, f.Class))
}

// readQuery parses the query of a request. The error for an unknown name lists the known names.
func readQuery(r *http.Request, pods []string) (q query, err error) {
	if err := r.ParseForm(); err != nil {
		return q, err
	}
	for _, text := range r.Form["class"] {
		c := telemetry.FlowClass(text)
		if !slices.Contains(telemetry.FlowClasses(), c) {
			return q, fmt.Errorf("no class is called %q: write one of %s", text, classNames())
		}
		q.classes = append(q.classes, c)
	}
	q.pod = r.FormValue("pod")
	if q.pod != "" && !slices.Contains(pods, q.pod) {
		return q, admin.NotHere(q.pod, pods)
	}
	return q, nil
}

func classNames() string {
	var names []string
	for _, c := range telemetry.FlowClasses() {
		names = append(names, string(c))
	}
	return strings.Join(names, ", ")
}

// page reads all connections and returns those that the request selects, as telemetry.Flows.
func (f *Feature) page(r *http.Request) (any, error) {
	f.reading.Lock()
	defer f.reading.Unlock()
	w, harmless, err := f.open()
	if err != nil {
		return nil, err
	}
	defer w.router.Close()
	q, err := readQuery(r, w.podNames())
	if err != nil {
		return nil, err
	}

	p := &reading{world: w, query: q, seed: f.seed, twice: f.o.Services != nil,
		drops: newDrops(f.o.Drops(), harmless, time.Now())}
	if err := f.read(p); err != nil {
		return nil, err
	}
	p.addDrops()
	answer := p.all()
	answer.Notes = append(f.notes(), p.notes...)
	return answer, nil
}

// open reads the node's state that decides the class of connections. harmless holds the drop
// reasons that do not indicate a fault. The caller must close w.router.
func (f *Feature) open() (w *world, harmless map[string]bool, err error) {
	guard, err := f.o.Guard()
	if err != nil {
		return nil, nil, fmt.Errorf("read the guard: %w", err)
	}
	devices, peers, err := f.o.Tunnels()
	if err != nil {
		return nil, nil, fmt.Errorf("read the tunnels: %w", err)
	}

	w = &world{guardRanges: newRanges(guard.Ranges...), marked: map[netip.Addr]bool{},
		tunnels: newTunnels(devices, peers), ways: map[nl.Packet]nl.Way{}}
	nodes, prefixes, former := f.stated()
	w.nodes = nodes
	cfg := f.o.Config
	nodeRanges := slices.Clone(cfg.NodeRanges)
	for _, s := range cfg.Sites {
		nodeRanges = append(nodeRanges, s.NodeRanges...)
	}
	w.addresses = addresses{nodeRanges: newRanges(nodeRanges...), former: former,
		ranges: newRanges(slices.Concat(cfg.PodRanges(), cfg.ServiceRanges, prefixes)...)}
	for _, a := range guard.NodeAddrs {
		w.marked[a] = true
	}
	if f.o.ServiceAddrs != nil {
		former, balancers := f.o.ServiceAddrs()
		w.rows = rowsOf(former, balancers)
	}
	if err := w.readLinks(f.o.Paths, guard.Links); err != nil {
		return nil, nil, err
	}

	harmless = map[string]bool{}
	for _, d := range guard.Drops {
		harmless[d.Name] = d.Harmless
	}
	w.router, err = nl.OpenRouter()
	return w, harmless, err
}

// read adds the connections of conntrack, of host processes' sockets, of the services' flow table
// and of the fast path to p.
func (f *Feature) read(p *reading) (err error) {
	if err := p.readSockets(); err != nil {
		return err
	}
	if err := f.readConntrack(p); err != nil {
		return err
	}
	if err := p.addUntracked(); err != nil {
		return err
	}
	if f.o.Services == nil {
		return p.err
	}
	err = f.o.Services(func(s bpfmaps.Flow) bool {
		p.addService(s)
		return p.err == nil
	})
	if err != nil || p.err != nil || f.o.Opened == nil {
		return errors.Join(err, p.err)
	}
	opened, err := f.o.Opened()
	for _, o := range opened {
		p.addOpened(o)
	}
	return errors.Join(err, p.err)
}

func (f *Feature) readConntrack(p *reading) (err error) {
	if f.conn == nil {
		if f.conn, err = nft.Open(); err != nil {
			return err
		}
	}
	messages, err := f.conn.Messages()
	if err != nil {
		return err
	}
	err = nl.EachTracked(messages, p.begin, func(t nl.Tracked) {
		p.add(connection{t, "conntrack"})
	})
	if err != nil {
		return errors.Join(err, f.closeLocked())
	}
	return p.err
}

// notes returns sentences about the traffic that a page does not show, or may show wrongly.
func (f *Feature) notes() []string {
	all := []string{
		"Not seen: packets that conntrack does not track (notrack rules), except of connected TCP " +
			"and UDP sockets of host processes; raw and packet sockets; interfaces of pods beside " +
			"Kubeveil (row 11); packets that host processes sent before veild began (row 7).",
		"Routes are looked up without a mark and without a bound link, so a socket that has " +
			"either may use another route.",
	}
	if f.o.ServiceAddrs == nil {
		all = append(all, "Rows 9 (addresses of deleted services) and 10 (the cluster's own load "+
			"balancer) are shown as row 1, because another program translates services.")
	} else {
		all = append(all, "Row 9 is shown as row 1 if no service has had the address since veild "+
			"began, and row 10 if the load balancer's status has only a host name.")
	}
	if len(f.o.Config.NodeRanges) == 0 {
		all = append(all, "Row 8 is shown as row 1 if no Node has had the address since veild "+
			"began: set nodeRanges.")
	}
	if f.o.Config.Services.FastPath() {
		all = append(all, "Not seen: datagrams between pods without a service, of this node or of "+
			"other nodes (services.hostRouting).")
	}
	return all
}
