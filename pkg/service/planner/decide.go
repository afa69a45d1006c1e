package planner

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"net/netip"
	"slices"
	"strings"
	"time"
	"unique"

	"github.com/kubeveil/kubeveil/pkg/service"
	"github.com/kubeveil/kubeveil/pkg/service/buddy"
)

// kind is the field of the Service from which a frontend comes. If two services claim a frontend,
// the service with the lower kind gets it.
type kind uint8

const (
	kindAPIServer kind = iota
	kindClusterIP
	kindNodePort
	kindLoadBalancer
	kindExternalIP
)

// claim is a frontend that a service wants.
type claim struct {
	key      service.FrontendKey
	kind     kind
	owner    service.Name
	created  time.Time
	group    groupKey
	sources  uint64
	affinity uint32
	flags    uint32
}

// groupKey names the group of backends of a frontend, within a service.
type groupKey struct {
	port     string
	protocol service.Protocol
	v6       bool
	local    bool // only backends on this node
}

// group holds the backends of a groupKey.
type group struct {
	id uint64
	// lowest is the rank of the backends; 0 if there are none, or a rank that is not known.
	lowest   int
	backends service.Backends // sorted, no two with one address and port
	// draining are the backends that only keep flows. Groups of UDP and with affinity have some.
	draining service.Backends
	at       buddy.Extent // of both, count 0 where there are none
}

func (g *group) slots() int { return g.backends.Len() + g.draining.Len() }

// equal reports whether g and o have the same run.
func (g *group) equal(o *group) bool {
	return g == o || g.backends.Equal(o.backends) && g.draining.Equal(o.draining)
}

// keeps reports whether each backend of o may keep its flows in g.
func (g *group) keeps(o *group) bool {
	for _, list := range []service.Backends{o.backends, o.draining} {
		chosen, rest := 0, 0
		for i := range list.Len() {
			b := list.At(i)
			if !g.backends.Reach(&chosen, b) && !g.draining.Reach(&rest, b) {
				return false
			}
		}
	}
	return true
}

// decision is the result for one service. It does not consider other services and free room.
type decision struct {
	claims  []claim
	groups  map[groupKey]*group
	sources map[service.SourceRangeKey]bool
	// refused are the ports that the table does not support.
	refused []error
}

// compare returns a negative number if c, not o, gets the frontend that both claim.
func (c claim) compare(o claim) int {
	return cmp.Or(cmp.Compare(c.kind, o.kind), c.created.Compare(o.created),
		cmp.Compare(c.owner.Namespace, o.owner.Namespace), cmp.Compare(c.owner.Name, o.owner.Name))
}

// here holds the facts about this node and cluster that a decision needs besides the service.
type here struct {
	node   string
	handle unique.Handle[string] // of node
	zone   string                // "" if the node has none
	addrs  []netip.Addr          // serve NodePorts
	own    []netip.Addr          // all addresses, sorted
	// reserved holds the frontends that no external address may claim, with a description of each.
	reserved map[service.FrontendKey]string
}

// dnsPort is the port at which a DNS cache of the node may answer for a DNS service.
const dnsPort = 53

// Has reports whether the node has an address.
func (h here) has(a netip.Addr) bool {
	_, found := slices.BinarySearchFunc(h.own, a, netip.Addr.Compare)
	return found
}

// decide returns the decision for e. It is pure: the order of e's slices and of their endpoints
// does not matter.
func decide(h here, e *entry) decision {
	d := decision{groups: make(map[groupKey]*group), sources: make(map[service.SourceRangeKey]bool)}
	if e.api != nil {
		d.apiServer(e)
	}
	if e.service == nil {
		return d
	}
	for _, p := range e.service.Ports {
		if p.Protocol != service.TCP && p.Protocol != service.UDP {
			d.refused = append(d.refused, service.NotSupported(e.name, p))
			continue
		}
		d.port(h, e, p)
	}
	return d
}

func (d *decision) port(h here, e *entry, p service.Port) {
	s := e.service
	found := map[bool][]candidate{}
	add := func(k kind, a netip.Addr, port uint16, scope service.Scope, local bool) {
		a = a.Unmap()
		v6 := a.Is6()
		if !service.Reachable(a) || port == 0 || !s.HasFamily(v6) {
			return
		}
		if _, ok := found[v6]; !ok {
			found[v6] = candidates(h, e, p, v6)
		}

		c := claim{
			key: service.MakeFrontendKey(netip.AddrPortFrom(a, port), p.Protocol, scope), kind: k,
			owner:   e.name,
			created: s.Created,
			group:   groupKey{p.Name, p.Protocol, v6, local}, affinity: seconds(s.Affinity),
		}
		g := d.group(e, c.group, found[v6])
		if g.backends.Len() == 0 && local &&
			slices.ContainsFunc(found[v6], func(c candidate) bool { return c.rank >= rankLast }) {
			c.flags |= service.FlagDrop
		}
		if k == kindLoadBalancer && scope == service.Outside {
			c.sources = d.sourceSet(e, v6)
		}

		d.claims = append(d.claims, c)
	}

	external := func(k kind, a netip.Addr, port uint16) {
		frontend := service.MakeFrontendKey(netip.AddrPortFrom(a, port), p.Protocol, service.Inside)
		if what, ok := h.reserved[frontend]; ok {
			d.refused = append(d.refused, service.Reserved(e.name, frontend, what))
			return
		}
		add(k, a, port, service.Inside, false)
		add(k, a, port, service.Outside, s.ExternalLocal)
	}

	for _, a := range s.ClusterIPs {
		if p.Port == dnsPort && h.has(a.Unmap()) {
			continue // a DNS cache of the node has the address
		}
		add(kindClusterIP, a, p.Port, service.Inside, s.InternalLocal)
	}

	for _, a := range h.addrs {
		external(kindNodePort, a, p.NodePort)
	}

	for _, a := range s.LoadBalancerIPs {
		external(kindLoadBalancer, a, p.Port)
	}

	for _, a := range s.ExternalIPs {
		external(kindExternalIP, a, p.Port)
	}
}

// apiGroups holds the numbers of the groups of entry 0.
var apiGroups = map[uint64]bool{groupID(apiName, apiGroup(false)): true,
	groupID(apiName, apiGroup(true)): true}

func apiGroup(v6 bool) groupKey { return groupKey{port: "https", protocol: service.TCP, v6: v6} }

// hostPrefix is the prefix of the port of a hostGroup. No port of a service has such a name.
const hostPrefix = "host "

// hostGroup returns the group of one frontend for Host. Each such frontend has its own group,
// because each has its own servers.
func hostGroup(a netip.AddrPort) groupKey {
	return groupKey{port: hostPrefix + a.String(), protocol: service.TCP, v6: a.Addr().Is6()}
}

// isHost reports whether k is a result of hostGroup.
func (k groupKey) isHost() bool { return strings.HasPrefix(k.port, hostPrefix) }

// isAPI reports whether a frontend in the maps is one of entry 0.
func isAPI(k service.FrontendKey, f service.Frontend) bool {
	return k.Scope == service.Host || apiGroups[f.Group]
}

// apiServer adds the claims and groups of entry 0, which has reserved room.
func (d *decision) apiServer(e *entry) {
	frontends := slices.Clone(e.api.Frontends)
	slices.SortFunc(frontends, netip.AddrPort.Compare)
	for _, a := range slices.Compact(frontends) {
		d.apiClaim(e, a, service.Inside, apiGroup(a.Addr().Unmap().Is6()), e.api.Backends)
	}

	hosts := slices.Clone(e.api.Host)
	slices.SortFunc(hosts, func(x, y service.HostFrontend) int { return x.Addr.Compare(y.Addr) })
	for _, h := range hosts[:min(len(hosts), service.MaxHostFrontends)] {
		a := netip.AddrPortFrom(h.Addr.Addr().Unmap(), h.Addr.Port())
		if d.groups[hostGroup(a)] == nil {
			d.apiClaim(e, a, service.Host, hostGroup(a), h.Backends)
		}
	}
}

// apiClaim adds a frontend of entry 0. It leads to the backends of its family.
func (d *decision) apiClaim(e *entry, a netip.AddrPort, s service.Scope, key groupKey,
	backends []netip.AddrPort) {
	addr := a.Addr().Unmap()
	if !service.Reachable(addr) || a.Port() == 0 || len(d.claims) == service.MaxAPIFrontends {
		return
	}

	d.claims = append(d.claims, claim{
		key:   service.MakeFrontendKey(netip.AddrPortFrom(addr, a.Port()), service.TCP, s),
		kind:  kindAPIServer,
		owner: e.name, group: key,
	})
	if d.groups[key] != nil {
		return
	}

	var list []service.Backend
	for _, b := range backends {
		if b = netip.AddrPortFrom(b.Addr().Unmap(), b.Port()); service.Reachable(b.Addr()) &&
			b.Port() != 0 && b.Addr().Is6() == key.v6 {
			list = append(list, service.BackendOf(b))
		}
	}

	slices.SortFunc(list, service.CompareBackend)
	list = slices.Compact(list)
	d.groups[key] = &group{id: groupID(e.name, key),
		backends: service.BackendsOf(list[:min(len(list), service.MaxAPIServers)])}
}

// seconds returns d in seconds, rounded up, because 0 would mean no affinity.
func seconds(d time.Duration) uint32 {
	if d <= 0 {
		return 0
	}
	return uint32((d + time.Second - 1) / time.Second)
}

// group returns the group of key, from the candidates of its port and family. It makes each group
// once.
func (d *decision) group(e *entry, key groupKey, all []candidate) *group {
	if g := d.groups[key]; g != nil {
		return g
	}

	g := &group{id: groupID(e.name, key)}
	d.groups[key] = g
	mine := func(c candidate) bool { return !key.local || c.slot.Flags&service.FlagLocal != 0 }
	near := hint(0)
	if !key.local {
		near = nearest(all)
	}
	chosen := make([]service.Backend, 0, len(all))
	for rank := rankReady; rank >= rankLast && len(chosen) == 0; rank-- {
		g.lowest = rank
		for _, c := range all {
			if c.rank == rank && mine(c) && c.hints&near == near {
				chosen = append(chosen, c.slot)
			}
		}
	}
	g.backends = service.BackendsOf(chosen)

	if key.protocol != service.UDP && e.service.Affinity <= 0 {
		return g
	}

	var rest []service.Backend
	for _, c := range all {
		if len(chosen) > 0 && c.slot == chosen[0] {
			chosen = chosen[1:]
		} else if mine(c) {
			rest = append(rest, c.slot)
		}
	}
	g.draining = service.BackendsOf(rest)
	return g
}

// sourceSet returns the number of the set of e's source ranges of a family. It returns 0, which
// admits all clients, only if e has no ranges at all. Ranges of one family admit no client of the
// other family.
func (d *decision) sourceSet(e *entry, v6 bool) uint64 {
	if len(e.service.SourceRanges) == 0 {
		return 0
	}
	var ranges []netip.Prefix
	for _, r := range e.service.SourceRanges {
		if r.IsValid() && r.Addr().Is6() == v6 {
			ranges = append(ranges, r.Masked())
		}
	}
	slices.SortFunc(ranges, func(a, b netip.Prefix) int {
		return cmp.Or(a.Addr().Compare(b.Addr()), cmp.Compare(a.Bits(), b.Bits()))
	})
	text := []string{"sources", e.name.Namespace, e.name.Name, family(v6)}
	for _, r := range ranges {
		text = append(text, r.String())
	}
	// The number is a digest of the content, so sets with different content have different numbers.
	set := digest(text)
	for _, r := range ranges {
		d.sources[service.MakeSourceRangeKey(set, r)] = true
	}
	return set
}

// groupID returns the number of a group. It depends on names only, so that affinity outlives a
// restart.
func groupID(n service.Name, k groupKey) uint64 {
	scope := "all"
	if k.local {
		scope = "local"
	}
	return digest([]string{"group", n.Namespace, n.Name, k.port, k.protocol.String(), family(k.v6),
		scope})
}

func family(v6 bool) string {
	if v6 {
		return "IPv6"
	}
	return "IPv4"
}

// digest returns the first 64 bits of the SHA-256 of a list of words, but never 0. Among a million
// digests, two are equal with a probability of about one in thirty million. Two such groups would
// only share affinity, and no client can cause that.
func digest(words []string) uint64 {
	var b []byte
	for _, w := range words {
		b = binary.BigEndian.AppendUint32(b, uint32(len(w)))
		b = append(b, w...)
	}
	sum := sha256.Sum256(b)
	return max(1, binary.BigEndian.Uint64(sum[:]))
}
