package drop

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/kubeveil/kubeveil/internal/kfeature"
	"github.com/kubeveil/kubeveil/internal/netns"
	"github.com/kubeveil/kubeveil/internal/nl"
	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/feature"
	"github.com/kubeveil/kubeveil/pkg/pod"
)

// Lifetimes and bounds of cached names.
const (
	// linksFor is how long the names of links are cached. linksKnown bounds their number.
	linksFor   = 10 * time.Second
	linksKnown = 1 << 12
	// recordsFor is the minimum time between checks whether the records of pods changed. A node
	// has hundreds of records.
	recordsFor = 250 * time.Millisecond
	// netnsFor is the minimum time between searches for the pod of an unknown netns cookie.
	netnsFor = time.Second
)

// link is the name and the group of a link.
type link struct {
	name  string
	group uint32
}

// names finds the names of links, pods and nodes. It is not for concurrent use.
type names struct {
	// find finds a link by its index.
	find  func(index int) (link, error)
	paths pod.Paths

	links     map[int]link
	linksRead time.Time

	// byLink and byAddr hold the names of this node's pods, from their records.
	byLink map[string]string
	byAddr map[netip.Addr]string
	// byNetns holds the pods by the cookies of their network namespaces. netnsOf holds the cookies
	// by host link.
	byNetns   map[uint64]string
	netnsOf   map[string]uint64
	netnsRead time.Time
	// netnsTouched is the state of the records when byNetns and netnsOf were read.
	netnsTouched pod.Touched

	records     pod.Cache
	touched     pod.Touched
	recordsRead time.Time

	// nodeByAddr and prefixes hold the addresses and pod prefixes of all other nodes.
	nodeByAddr map[netip.Addr]string
	prefixes   []nodePrefix
}

type nodePrefix struct {
	prefix netip.Prefix
	node   string
}

// finder returns names.find for the calling thread's network namespace, and stop, which closes its
// socket.
func finder() (find func(int) (link, error), stop func(), err error) {
	h, err := nl.Open()
	if err != nil {
		return nil, nil, err
	}
	return func(index int) (link, error) {
		l, err := h.LinkByIndex(index)
		if err != nil {
			return link{}, nl.Err(err)
		}
		return link{l.Attrs().Name, l.Attrs().Group}, nil
	}, h.Close, nil
}

// linkOf returns the link with an index. It returns the zero link for index 0, which means no link.
func (n *names) linkOf(index int, now time.Time) link {
	if index == 0 {
		return link{}
	}
	if now.Sub(n.linksRead) > linksFor || len(n.links) >= linksKnown {
		n.links, n.linksRead = map[int]link{}, now
	}
	l, known := n.links[index]
	if !known {
		if n.find != nil {
			l, _ = n.find(index)
		}
		if l.name == "" { // It is gone.
			l.name = fmt.Sprintf("link %d", index)
		}
		n.links[index] = l
	}
	return l
}

// podBehind returns the pod of a link, or "" if the link belongs to no pod.
func (n *names) podBehind(l link) string {
	if !strings.HasPrefix(l.name, abi.PodLinkPrefix) && l.group != abi.PodGroup {
		return ""
	}
	if name := n.byLink[l.name]; name != "" {
		return name // A link belongs to only one pod during its life.
	}
	if r, err := n.paths.Load(l.name); err == nil { // It may be newer than the cached records.
		return n.note(r)
	}
	return l.name
}

// podAt returns the pod of this node that has the address a, or "".
func (n *names) podAt(a netip.Addr, now time.Time) string {
	n.readRecords(now)
	return n.byAddr[a]
}

// pods returns the names of this node's pods, sorted.
func (n *names) pods(now time.Time) (all []string) {
	n.readRecords(now)
	for _, name := range n.byLink {
		all = append(all, name)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// podOf returns the pod whose network namespace has the cookie, or "".
func (n *names) podOf(netnsCookie uint64, now time.Time) string {
	if name := n.byNetns[netnsCookie]; name != "" || now.Sub(n.netnsRead) < netnsFor {
		return name // The kernel never reuses a cookie.
	}
	touched := n.paths.Touched()
	n.netnsRead = now
	if n.byNetns != nil && n.netnsTouched.SameRecords(touched) {
		return ""
	}
	n.netnsTouched = touched
	records, _ := n.records.List(n.paths)
	known := n.netnsOf
	n.netnsOf, n.byNetns = map[string]uint64{}, map[uint64]string{}
	for _, r := range records {
		cookie := known[r.HostLink]
		if cookie == 0 {
			_ = netns.Do(r.Netns, func() (err error) { // The namespace may be gone.
				cookie, err = kfeature.NetnsCookie()
				return err
			})
		}
		if cookie != 0 {
			n.netnsOf[r.HostLink], n.byNetns[cookie] = cookie, n.note(r)
		}
	}
	return n.byNetns[netnsCookie]
}

// readRecords updates byLink and byAddr if the records of pods may have changed.
func (n *names) readRecords(now time.Time) {
	if now.Sub(n.recordsRead) < recordsFor {
		return
	}
	touched := n.paths.Touched()
	n.recordsRead = now
	if n.byLink != nil && n.touched.SameRecords(touched) {
		return
	}
	n.byLink, n.byAddr, n.touched = map[string]string{}, map[netip.Addr]string{}, touched
	records, _ := n.records.List(n.paths) // The keeper of pods reports records that cannot be read.
	for _, r := range records {
		n.note(r)
	}
}

// note adds the pod of a record to byLink and byAddr, and returns its name.
func (n *names) note(r pod.Record) (name string) {
	if n.byLink == nil {
		n.byLink, n.byAddr = map[string]string{}, map[netip.Addr]string{}
	}
	if name = r.HostLink; r.Workload.Name != "" {
		name = r.Workload.Namespace + "/" + r.Workload.Name
	}
	n.byLink[r.HostLink] = name
	for _, a := range r.Addrs {
		n.byAddr[a] = name
	}
	return name
}

// setNodes replaces the addresses and prefixes of the other nodes.
func (n *names) setNodes(t feature.Turn) {
	n.nodeByAddr, n.prefixes = map[netip.Addr]string{}, nil
	for _, node := range slices.Concat(t.Table.Peers, t.Table.Keyless) {
		for _, a := range node.Addresses {
			n.nodeByAddr[a] = node.Name
		}
		for _, p := range node.PodPrefixes {
			n.prefixes = append(n.prefixes, nodePrefix{p, node.Name})
		}
	}
}

// nodeOf returns the other node that an address belongs to, or "".
func (n *names) nodeOf(a netip.Addr) string {
	if name := n.nodeByAddr[a]; name != "" {
		return name
	}
	for _, p := range n.prefixes {
		if p.prefix.Contains(a) {
			return p.node
		}
	}
	return ""
}
