package policy

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// Bounds of one policy. Each direction of a policy that exceeds one denies everything.
const (
	// MaxLines bounds the lines that one direction of a policy compiles to.
	MaxLines = 4096
	// MaxRanges bounds the ranges of addresses that the blocks of one direction come to.
	MaxRanges = 4096
	// MaxValues bounds the values of all requirements of one selector.
	MaxValues = 1024
	// MaxChainLines bounds the lines of all policies that isolate one pod.
	MaxChainLines = 16384
)

// definition describes the content of a set. Its text is the set's identity.
type definition struct {
	kind SetKind
	// any holds alternatives: the set contains the pods that at least one of them selects. If it is
	// empty, the fields below select the pods.
	any []*definition
	// block is the address range of KindBlock. For KindNamed it restricts the peers; nil does not
	// restrict them.
	block *Block
	// namespace restricts the pods if namespaces is nil. If both are empty, all pods match.
	namespace  string
	namespaces *Selector
	// pods selects pods, or nodes for KindNodes.
	pods Selector
	// denied reports whether a set of KindNodes contains nodes with Excess.
	denied bool
	// port and proto are the named port of KindNamed.
	port  string
	proto Proto
}

// ofPods reports whether a set contains pods' addresses: neither blocks nor nodes.
func (d *definition) ofPods() bool { return d.kind != KindBlock && d.kind != KindNodes }

// matches reports whether a pod in a namespace is selected. The namespace is nil when unknown. No
// selector of namespaces selects an unknown namespace, or one with Excess.
func (d *definition) matches(p *Pod, ns *Namespace) bool {
	if len(d.any) > 0 {
		return slices.ContainsFunc(d.any, func(a *definition) bool { return a.matches(p, ns) })
	}
	switch {
	case d.namespaces != nil:
		if ns == nil || ns.Excess || !d.namespaces.Matches(ns.Labels) {
			return false
		}
	case d.namespace != "":
		if p.Namespace != d.namespace {
			return false
		}
	}
	return d.pods.Matches(p.Labels)
}

// text returns a canonical text: equal definitions have equal texts.
func (d *definition) text() string {
	b := strconv.AppendUint(make([]byte, 0, 128), uint64(d.kind), 10)
	if d.block != nil {
		b = d.block.CIDR.Masked().AppendTo(append(b, " block "...))
		for _, p := range sortedPrefixes(d.block.Except) {
			b = p.AppendTo(append(b, " less "...))
		}
	}
	switch {
	case d.namespaces != nil:
		b = append(append(b, " namespaces "...), selectorText(*d.namespaces)...)
	case d.namespace != "":
		b = strconv.AppendQuote(append(b, " namespace "...), d.namespace)
	}
	b = append(append(b, " pods "...), selectorText(d.pods)...)
	if d.denied {
		b = append(b, " or more labels than are kept"...)
	}
	for _, a := range d.any {
		b = strconv.AppendQuote(append(b, " any "...), a.text())
	}
	if d.kind == KindNamed {
		b = strconv.AppendQuote(append(b, " port "...), d.port)
		b = append(append(b, ' '), d.proto.String()...)
	}
	return string(b)
}

func selectorText(s Selector) string {
	all := make([]string, 0, len(s))
	for _, r := range s {
		values := r.Values
		if len(values) > 1 {
			values = slices.Compact(slices.Sorted(slices.Values(values)))
		}
		b := strconv.AppendQuote(make([]byte, 0, 64), r.Key)
		b = append(strconv.AppendUint(append(b, ' '), uint64(r.Op), 10), " ["...)
		for i, v := range values {
			if i > 0 {
				b = append(b, ' ')
			}
			b = strconv.AppendQuote(b, v)
		}
		all = append(all, string(append(b, ']')))
	}
	slices.Sort(all)
	return "{" + strings.Join(slices.Compact(all), ", ") + "}"
}

func sortedPrefixes(prefixes []netip.Prefix) []netip.Prefix {
	var out []netip.Prefix
	for _, p := range prefixes {
		out = append(out, p.Masked())
	}
	slices.SortFunc(out, netip.Prefix.Compare)
	return slices.Compact(out)
}

// id names a text by 80 bits of its SHA-256: a tenant who writes policies cannot search for a
// second text with a given name.
func id(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:10])
}

// compiled is a policy in the form from which chains are made.
type compiled struct {
	policy Policy
	// lines are by direction. Ingress ports with names depend on the subject; they are in named.
	lines [2][]Line
	named []namedLine
	// sets are the definitions of the sets that lines and named refer to.
	sets map[string]*definition
	// count is the number of lines by direction, before any are joined: one for each peer and range
	// of ports.
	count [2]int
	// ranges counts the ranges of blocks by direction.
	ranges [2]int
	// over reports whether the policy denies because its namespace exceeds a budget.
	over bool
	// serial numbers the version of the policy.
	serial uint64
	// problem is the reason why the policy, or a direction of it, denies everything; "" if none
	// does.
	problem string
}

// namedLine is a line of ingress for a named port of the subject.
type namedLine struct {
	peer  string
	proto Proto
	name  string
}

// subjects returns the selector of the policy's pods. A selector that is too large to match against
// each pod is replaced by one that selects the whole namespace.
func (c *compiled) subjects() Selector {
	if checkSelector(c.policy.Subjects) != nil {
		return nil
	}
	return c.policy.Subjects
}

// compile fills in all but the policy, once. It never fails: a direction that exceeds a bound has
// no lines. Only policies that select a pod of this node are compiled.
func (c *compiled) compile() {
	if c.sets != nil {
		return
	}
	c.sets, c.problem = map[string]*definition{}, c.policy.Invalid
	if c.problem != "" {
		return
	}
	if err := checkSelector(c.policy.Subjects); err != nil {
		c.problem = "podSelector: " + err.Error() + ": all pods of the namespace are selected"
		return
	}

	for _, d := range []Direction{Ingress, Egress} {
		if !c.policy.Isolates[d] {
			continue
		}
		w := &writer{policy: c.policy, direction: d, sets: map[string]*definition{}}
		if err := w.rules(c.policy.Rules[d]); err != nil {
			c.problem = fmt.Sprintf("%s: %v", d, err)
			continue
		}
		c.lines[d], c.count[d] = w.lines, w.count-len(w.named)
		c.ranges[d] = w.ranges
		c.named = append(c.named, w.named...)
		maps.Copy(c.sets, w.sets)
	}
}

func checkSelector(s Selector) error {
	count := 0
	for _, r := range s {
		count += 1 + len(r.Values)
	}
	if count > MaxValues {
		return fmt.Errorf("a selector has %d values, more than %d", count, MaxValues)
	}
	return nil
}

// splitPorts merges numbers into disjoint intervals that do not touch, and returns names apart.
func splitPorts(ports []Port) (intervals []Interval, names []Port, err error) {
	for _, p := range ports {
		switch {
		case p.Name != "":
			if !slices.Contains(names, p) {
				names = append(names, p)
			}
		case p.First == 0:
			intervals = append(intervals, Interval{p.Proto, 0, 65535})
		case p.Last < p.First:
			return nil, nil, fmt.Errorf("endPort %d is below port %d", p.Last, p.First)
		default:
			intervals = append(intervals, Interval{p.Proto, p.First, p.Last})
		}
	}

	slices.SortFunc(intervals, Interval.compare)
	var merged []Interval
	for _, i := range intervals {
		if last := len(merged) - 1; last >= 0 && merged[last].Proto == i.Proto &&
			int(i.First) <= int(merged[last].Last)+1 {
			merged[last].Last = max(merged[last].Last, i.Last)
			continue
		}
		merged = append(merged, i)
	}
	return merged, names, nil
}

// rangesOf returns the block less its exceptions as disjoint ranges in ascending order.
func rangesOf(b Block) ([]Range, error) {
	if !b.CIDR.IsValid() || b.CIDR.Addr().Zone() != "" || b.CIDR.Addr().Is4In6() {
		return nil, fmt.Errorf("ipBlock %s is not a prefix", b.CIDR)
	}

	cidr := b.CIDR.Masked()
	next, end := cidr.Addr(), lastOf(cidr)
	var out []Range
	for _, p := range sortedPrefixes(b.Except) {
		if !p.IsValid() || p.Addr().Is4() != cidr.Addr().Is4() || !cidr.Contains(p.Addr()) {
			return nil, fmt.Errorf("ipBlock %s does not contain its exception %s", b.CIDR, p)
		}
		if !next.IsValid() || p.Addr().Less(next) {
			continue // inside an earlier exception
		}
		if next.Less(p.Addr()) {
			out = append(out, Range{next, p.Addr().Prev()})
		}
		next = lastOf(p).Next()
	}
	if next.IsValid() && !end.Less(next) {
		out = append(out, Range{next, end})
	}
	return out, nil
}

// lastOf returns the last address of a prefix.
func lastOf(p netip.Prefix) netip.Addr {
	b := p.Masked().Addr().AsSlice()
	for i := p.Bits(); i < len(b)*8; i++ {
		b[i/8] |= 0x80 >> (i % 8)
	}
	a, _ := netip.AddrFromSlice(b)
	return a
}

// linesOf returns the lines of one direction for one pod, with the ports that it names.
func (c *compiled) linesOf(d Direction, p *Pod) []Line {
	lines := c.lines[d]
	if d == Egress || len(c.named) == 0 {
		return lines
	}
	return append(slices.Clone(lines), namedLines(c.named, p)...)
}

// namedLines returns lines for the ports of a pod that have the names.
func namedLines(named []namedLine, p *Pod) (lines []Line) {
	for _, n := range named {
		for _, port := range p.Ports {
			if port.Name == n.name && port.Proto == n.proto && port.Port != 0 {
				lines = append(lines,
					Line{Peer: n.peer, Ports: Interval{n.proto, port.Port, port.Port}})
			}
		}
	}
	return lines
}

// text returns a canonical text without the action. The text ends with a separator, so that texts
// in a row are unambiguous.
func (l Line) text() string {
	peer := cmp.Or(l.Peer, "all")
	if l.Ports.Proto == 0 {
		return peer + ";"
	}
	return peer + " " + l.Ports.Proto.String() + " " +
		strconv.Itoa(int(l.Ports.First)) + "-" + strconv.Itoa(int(l.Ports.Last)) + ";"
}
