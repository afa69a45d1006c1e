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

// linksFor is how long the name of a link is believed, linksKnown bounds the links. recordsFor is
// how long records are believed that may have changed: a node has hundreds.
const (
	linksFor   = 10 * time.Second
	linksKnown = 1 << 12
	recordsFor = 250 * time.Millisecond
	// netnsFor is how soon the namespaces of pods are read again for an unknown cookie.
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

	// byLink and byAddr are the pods of this node by their records.
	byLink map[string]string
	byAddr map[netip.Addr]string
	// byNetns are the pods by the cookies of their network namespaces, netnsOf the cookies by link.
	byNetns   map[uint64]string
	netnsOf   map[string]uint64
	netnsRead time.Time
	// netnsTouched is what the records were when both were read.
	netnsTouched pod.Touched

	touched     pod.Touched
	recordsRead time.Time

	// nodeByAddr and prefixes are of all other nodes.
	nodeByAddr map[netip.Addr]string
	prefixes   []nodePrefix
}

type nodePrefix struct {
	prefix netip.Prefix
	node   string
}

// finder returns names.find for the calling thread's network namespace.
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

// linkOf returns a link by its index. The zero value means index 0, which no link has.
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
		return name // A link never becomes another pod's.
	}
	if r, err := n.paths.Load(l.name); err == nil { // It may be newer than the last reading.
		return n.note(r)
	}
	return l.name
}

// podAt returns the pod of this node with an address, or "".
func (n *names) podAt(a netip.Addr, now time.Time) string {
	n.readRecords(now)
	return n.byAddr[a]
}

// pods returns the pods of this node, sorted.
func (n *names) pods(now time.Time) (all []string) {
	n.readRecords(now)
	for _, name := range n.byLink {
		all = append(all, name)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// podOf returns the pod with a network namespace, by its cookie, or "".
func (n *names) podOf(netnsCookie uint64, now time.Time) string {
	if name := n.byNetns[netnsCookie]; name != "" || now.Sub(n.netnsRead) < netnsFor {
		return name // No other namespace gets the cookie.
	}
	touched := n.paths.Touched()
	n.netnsRead = now
	if n.byNetns != nil && n.netnsTouched.SameRecords(touched) {
		return ""
	}
	n.netnsTouched = touched
	records, _ := n.paths.List()
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

// readRecords reads the records of pods if they may have changed.
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
	records, _ := n.paths.List() // The keeper of pods reports records that cannot be read.
	for _, r := range records {
		n.note(r)
	}
}

// note remembers the pod of a record, and returns its name.
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

// setNodes sets the other nodes.
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
