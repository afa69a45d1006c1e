package planner

import (
	"errors"
	"maps"
	"net/netip"
	"slices"
	"time"

	"pgregory.net/rapid"

	"github.com/kubeveil/kubeveil/pkg/service"
)

// The values of random objects. They are few, so that services often claim the same frontends.
var (
	clusterIPs = addrs("198.18.0.1", "198.18.0.2", "fd42::1", "fd42::2")
	outerIPs   = addrs("198.19.0.1", "198.19.0.2", "fd42:9::1", "198.18.0.1")
	nodeAddrs  = addrs("198.19.1.1", "fd42:8::1", "198.19.1.2")
	podAddrs   = addrs("198.18.1.1", "198.18.1.2", "198.18.1.3", "198.18.1.4", "fd42:1::1",
		"fd42:1::2", "fd42:1::3")
	someRanges = []netip.Prefix{netip.MustParsePrefix("198.18.0.0/16"),
		netip.MustParsePrefix("198.19.0.0/24"), netip.MustParsePrefix("fd42::/32")}
	someNames = []service.Name{{Namespace: "a", Name: "x"}, {Namespace: "a", Name: "y"},
		{Namespace: "b", Name: "x"}, {Namespace: "c", Name: "z"}}
	somePorts = []service.Port{{Name: "http", Protocol: service.TCP, Port: 80, NodePort: 30080},
		{Name: "dns", Protocol: service.UDP, Port: 53, NodePort: 0}, {Name: "dns-tcp",
			Protocol: service.TCP, Port: 53, NodePort: 30053},
		{Name: "sctp", Protocol: service.SCTP, Port: 9, NodePort: 30009}, {Name: "near",
			Protocol: service.UDP, Port: 80, NodePort: 30080}}
)

func addrs(text ...string) []netip.Addr {
	var all []netip.Addr
	for _, t := range text {
		all = append(all, netip.MustParseAddr(t))
	}
	return all
}

func some[T any](t *rapid.T, label string, from []T, most int) []T {
	all := rapid.Permutation(from).Draw(t, label)
	return all[:rapid.IntRange(0, min(most, len(all))).Draw(t, "number of "+label)]
}

func genService(t *rapid.T, n service.Name) service.Service {
	s := service.Service{
		Name: n, Created: time.Unix(rapid.Int64Range(0, 2).Draw(t, "created"), 0),
		ClusterIPs:      some(t, "cluster IPs", clusterIPs, 2),
		ExternalIPs:     some(t, "external IPs", outerIPs, 1),
		LoadBalancerIPs: some(t, "balancer IPs", outerIPs, 3),
		Ports:           some(t, "ports", somePorts, 3),
		ExternalLocal:   rapid.Bool().Draw(t, "external local"),
		InternalLocal:   rapid.IntRange(0, 3).Draw(t, "internal local") == 0,
	}
	if rapid.Bool().Draw(t, "has affinity") {
		s.Affinity = 3 * time.Second
	}
	if rapid.Bool().Draw(t, "has ranges") {
		s.SourceRanges = some(t, "ranges", someRanges, 3)
	}
	return s
}

func genSlice(t *rapid.T, n service.Name, name string) service.Slice {
	s := service.Slice{Service: n, Name: name}
	for _, p := range some(t, "slice ports", somePorts, 5) {
		s.Ports = append(s.Ports, service.SlicePort{Name: p.Name, Protocol: p.Protocol,
			Port: 8000 + p.Port})
	}

	for _, a := range some(t, "endpoints", podAddrs, 6) {
		ep := service.Endpoint{Addr: a, Node: "node-2"}
		if a.As16()[15]%2 == 1 {
			ep.Node = "node-1"
		}
		switch rapid.IntRange(0, 5).Draw(t, "condition") {
		case 0:
			ep.Serving, ep.Terminating = true, true
		case 1:
			ep.Serving = true
		case 2:
			ep.Terminating = true
		default:
			ep.Ready, ep.Serving = true, true
		}
		if h := hintsFor(n, a); h != nil {
			ep.Hints = s.AddHints(*h)
		}
		s.Endpoints.Append(ep)
	}
	return s
}

// hintsFor returns the hints of an endpoint of a service. They are always the same, since two
// slices may have the endpoint. One endpoint has no hints for nodes, another has none for zones.
func hintsFor(n service.Name, a netip.Addr) *service.Hints {
	if n == someNames[0] {
		return nil
	}
	last := a.As16()[15]
	h := &service.Hints{Nodes: []string{"node-2"}, Zones: []string{"b"}}
	if last%2 == 1 {
		h.Nodes = []string{"node-3", "node-1"}
	}
	if last/2%2 == 1 {
		h.Zones = []string{"a", "b"}
	}
	switch a {
	case podAddrs[0]:
		h.Nodes = nil
	case podAddrs[1]:
		h.Zones = nil
	}
	return h
}

// cluster holds the objects of a small cluster, a Planner that receives them, and its maps.
type cluster struct {
	planner  *Planner
	maps     *memory
	api      *service.APIServer
	addrs    []netip.Addr
	zone     string
	services map[service.Name]service.Service
	slices   map[service.Name]map[string]service.Slice
	accepted map[service.Name]world // each service as it was when it last fit
	occupied bool                   // other users have slots: see occupy
	readers  []*reader
}

func newCluster(t interface{ Fatal(...any) }, l service.Limits) *cluster {
	p, err := New("node-1", l)
	if err != nil {
		t.Fatal(err)
	}
	return &cluster{
		planner: p, maps: newMemory(l), services: make(map[service.Name]service.Service),
		slices:   make(map[service.Name]map[string]service.Slice),
		accepted: make(map[service.Name]world),
	}
}

// change makes one random change.
func (c *cluster) change(t *rapid.T) {
	n := rapid.SampledFrom(someNames).Draw(t, "service")
	slice := rapid.SampledFrom([]string{"1", "2"}).Draw(t, "slice")
	if c.slices[n] == nil {
		c.slices[n] = make(map[string]service.Slice)
	}

	switch rapid.IntRange(0, 12).Draw(t, "change") {
	case 0:
		delete(c.services, n)
		c.planner.DeleteService(n)
	case 1:
		delete(c.slices[n], slice)
		c.planner.DeleteSlice(n, slice)
	case 2:
		c.addrs = some(t, "node addresses", nodeAddrs, 2)
		c.planner.SetNodeAddrs(c.addrs)
	case 3:
		c.api = &service.APIServer{Frontends: []netip.AddrPort{netip.MustParseAddrPort("198.18.0.1:80"),
			netip.MustParseAddrPort("[fd42::1]:443")}}
		for _, a := range some(t, "servers", nodeAddrs, 3) {
			c.api.Backends = append(c.api.Backends, netip.AddrPortFrom(a, 6443))
		}
		// Without room, frontends for the host have no backends. The oracle does not model that.
		if c.maps.limits == roomy && !c.occupied {
			for _, a := range some(t, "host frontends", nodeAddrs, 2) {
				f := service.HostFrontend{Addr: netip.AddrPortFrom(a, 6443)}
				for _, b := range some(t, "named servers", nodeAddrs, 3) {
					f.Backends = append(f.Backends, netip.AddrPortFrom(b, 6443))
				}
				c.api.Host = append(c.api.Host, f)
			}
		}
		c.planner.SetAPIServer(*c.api)
	case 12:
		c.zone = rapid.SampledFrom([]string{"", "a", "b", "c"}).Draw(t, "zone")
		c.planner.SetZone(c.zone)
	case 4, 5, 6:
		c.services[n] = genService(t, n)
		c.planner.PutService(c.services[n])
	default:
		c.slices[n][slice] = genSlice(t, n, slice)
		c.planner.PutSlice(c.slices[n][slice])
	}
}

// want returns the oracle's view. Services that do not fit keep their last fitting state.
func (c *cluster) want() map[service.FrontendKey]string {
	full := make(map[service.Name]bool)
	for _, err := range c.planner.Problems() {
		if f := (*service.FullError)(nil); errors.As(err, &f) {
			full[f.Service] = true
		}
	}
	for _, n := range someNames {
		if s, ok := c.services[n]; full[n] {
			continue
		} else if !ok {
			delete(c.accepted, n)
		} else {
			c.accepted[n] = world{s, slices.Collect(maps.Values(c.slices[n])), c.addrs, c.zone}
		}
	}
	return oracle("node-1", c.api, slices.Collect(maps.Values(c.accepted)))
}

// known returns want without the services that have not fitted since Adopt. Such a service keeps
// its former frontends only if no other service claims them.
func (c *cluster) known() map[service.FrontendKey]string {
	var worlds []world
	for n, w := range c.accepted {
		if e := c.planner.entries[n]; e != nil && (e.full == nil || len(e.now.groups) > 0) {
			worlds = append(worlds, w)
		}
	}
	return oracle("node-1", c.api, worlds)
}

func (c *cluster) view() map[service.FrontendKey]string {
	all := make(map[service.FrontendKey]string)
	for k := range c.maps.frontends {
		all[k] = c.maps.show(k)
	}
	return all
}

// apply makes the first most writes while readers read. Each reader must see one of the states in
// may.
func (c *cluster) apply(t *rapid.T, changes service.Changes, most int,
	may ...map[service.FrontendKey]string) {
	for _, write := range c.maps.writes(changes)[:most] {
		if err := write(); err != nil {
			t.Fatal(err)
		}
		for k := range c.maps.frontends {
			now := chosen(c.maps.show(k))
			if !slices.ContainsFunc(may, func(m map[service.FrontendKey]string) bool {
				w, ok := m[k]
				return ok && chosen(w) == now
			}) {
				t.Fatalf("%v scope %d is half changed: %q", k.AddrPort(), k.Scope, now)
			}
		}
		c.readOn(t)
	}
}

// readOn lets readers begin, read and end, each at another write.
func (c *cluster) readOn(t *rapid.T) {
	step := len(c.readers)
	if len(c.readers) > 0 && step%3 == 0 {
		r := c.readers[0]
		c.readers = c.readers[1:]
		if err := c.maps.end(r); err != nil {
			t.Fatal(err)
		}
	}
	for i, r := range c.readers {
		if r.got == "" && (i+step)%4 == 0 {
			c.maps.read(r, i+step)
		}
	}
	if len(c.readers) < 40 {
		for k := range c.maps.frontends {
			c.readers = append(c.readers, c.maps.begin(k))
			break
		}
	}
}

// settle plans and applies until a plan has no changes.
func (c *cluster) settle(t *rapid.T, before ...map[service.FrontendKey]string) {
	for range 10 {
		before := append(before, c.view())
		changes := c.planner.Plan()
		want := c.want()
		writes := changes.Writes()
		if changes.Empty() != (writes == 0) {
			t.Fatal("Empty and Writes of changes contradict each other")
		}
		c.apply(t, changes, writes, append(before, want)...)
		if d := difference(c.view(), want); d != "" {
			t.Fatal(d)
		}
		if err := c.checkChunks(); err != nil {
			t.Fatal(err)
		}
		if !changes.Again {
			return
		}
	}
	t.Fatal("plans never become empty")
}

// restart replaces the planner by a new one, with the maps that the old one left.
func (c *cluster) restart(t *rapid.T, state MapContent) {
	p, err := New("node-1", c.maps.limits)
	if err != nil {
		t.Fatal(err)
	}
	c.planner = p
	p.Adopt(state)
	p.SetNodeAddrs(c.addrs)
	p.SetZone(c.zone)
	if c.api != nil {
		p.SetAPIServer(*c.api)
	}
	for _, s := range c.services {
		p.PutService(s)
	}
	for _, all := range c.slices {
		for _, s := range all {
			p.PutSlice(s)
		}
	}
}
