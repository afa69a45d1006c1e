package compile

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/kubeveil/kubeveil/pkg/policy"
)

// Bounds of one policy. A direction that exceeds a bound denies everything.
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

// Definition describes the content of a set. Its text is the set's identity.
type Definition struct {
	Kind policy.SetKind
	// Any holds alternatives: the set contains the pods that at least one of them selects. If it is
	// empty, the fields below select the pods.
	Any []*Definition
	// Block is the address range of KindBlock. For KindNamed it restricts the peers; nil does not
	// restrict them.
	Block *policy.Block
	// Namespace restricts the pods if Namespaces is nil. If both are empty, all pods match.
	Namespace  string
	Namespaces *policy.Selector
	// Pods selects pods, or nodes for KindNodes.
	Pods policy.Selector
	// Denied reports whether a set of KindNodes contains nodes with Excess.
	Denied bool
	// Port and Proto are the named port of KindNamed.
	Port  string
	Proto policy.Proto
}

// OfPods reports whether a set contains pods' addresses: neither blocks nor nodes.
func (d *Definition) OfPods() bool {
	return d.Kind != policy.KindBlock &&
		d.Kind != policy.KindNodes
}

// Matches reports whether a pod in a namespace is selected. The namespace is nil when unknown. No
// selector of namespaces selects an unknown namespace, or one with Excess.
func (d *Definition) Matches(p *policy.Pod, ns *policy.Namespace) bool {
	if len(d.Any) > 0 {
		return slices.ContainsFunc(d.Any, func(a *Definition) bool { return a.Matches(p, ns) })
	}
	switch {
	case d.Namespaces != nil:
		if ns == nil || ns.Excess || !d.Namespaces.Matches(ns.Labels) {
			return false
		}
	case d.Namespace != "":
		if p.Namespace != d.Namespace {
			return false
		}
	}
	return d.Pods.Matches(p.Labels)
}

// text returns a canonical text: equal definitions have equal texts.
func (d *Definition) text() string {
	b := strconv.AppendUint(make([]byte, 0, 128), uint64(d.Kind), 10)
	if d.Block != nil {
		b = d.Block.CIDR.Masked().AppendTo(append(b, " block "...))
		for _, p := range SortedPrefixes(d.Block.Except) {
			b = p.AppendTo(append(b, " less "...))
		}
	}
	switch {
	case d.Namespaces != nil:
		b = append(append(b, " namespaces "...), selectorText(*d.Namespaces)...)
	case d.Namespace != "":
		b = strconv.AppendQuote(append(b, " namespace "...), d.Namespace)
	}
	b = append(append(b, " pods "...), selectorText(d.Pods)...)
	if d.Denied {
		b = append(b, " or more labels than are kept"...)
	}
	for _, a := range d.Any {
		b = strconv.AppendQuote(append(b, " any "...), a.text())
	}
	if d.Kind == policy.KindNamed {
		b = strconv.AppendQuote(append(b, " port "...), d.Port)
		b = append(append(b, ' '), d.Proto.String()...)
	}
	return string(b)
}

func selectorText(s policy.Selector) string {
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

// SortedPrefixes returns prefixes masked, sorted and without duplicates.
func SortedPrefixes(prefixes []netip.Prefix) []netip.Prefix {
	var out []netip.Prefix
	for _, p := range prefixes {
		out = append(out, p.Masked())
	}
	slices.SortFunc(out, netip.Prefix.Compare)
	return slices.Compact(out)
}

// ID returns the first 80 bits of the text's SHA-256 in hex. That is enough so that a tenant who
// writes policies cannot find a second text with a given ID.
func ID(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:10])
}

// Namespaced is a policy in the form from which chains are made.
type Namespaced struct {
	Policy policy.Policy
	// Lines are by direction. Ingress ports with names depend on the subject; they are in named.
	Lines [2][]policy.Line
	named []namedLine
	// Sets are the definitions of the sets that Lines and named refer to.
	Sets map[string]*Definition
	// Count is the number of lines by direction, before any are joined: one for each peer and range
	// of ports.
	Count [2]int
	// size is the number of lines and ranges of both directions, those of named ports included.
	size int
	// Over reports whether the policy denies everything because its namespace exceeds a budget.
	Over bool
	// Serial numbers the version of the policy.
	Serial uint64
	// Problem is the reason why the policy, or a direction of it, denies everything; "" if none
	// does.
	Problem string
}

// namedLine is a line of ingress for a named port of the subject.
type namedLine struct {
	peer  string
	proto policy.Proto
	name  string
}

// New returns a policy that is not compiled, but counted.
func New(p policy.Policy, serial uint64) *Namespaced {
	c := &Namespaced{Policy: p, Serial: serial}
	if p.Invalid != "" || checkSelector(p.Subjects) != nil {
		return c
	}
	for d, rules := range p.Rules {
		var n counter
		if p.Isolates[d] && n.addAll(rules) == nil {
			c.size += max(n.lines, n.ranges)
		}
	}
	return c
}

// Again returns the policy as a new version that is not compiled.
func (c *Namespaced) Again(serial uint64) *Namespaced {
	return &Namespaced{Policy: c.Policy, Serial: serial, size: c.size}
}

// Denying returns the policy as a new version with Over, which denies everything because of a
// problem.
func (c *Namespaced) Denying(serial uint64, problem string) *Namespaced {
	return &Namespaced{Policy: c.Policy, Serial: serial, size: c.size, Over: true, Problem: problem,
		Sets: map[string]*Definition{}}
}

// Subjects returns the selector of the policy's pods. A selector that is too large to match against
// each pod is replaced by one that selects the whole namespace.
func (c *Namespaced) Subjects() policy.Selector {
	if checkSelector(c.Policy.Subjects) != nil {
		return nil
	}
	return c.Policy.Subjects
}

// Compile sets all fields but Policy. A second call does nothing. It never fails: a direction that
// exceeds a bound has no lines. Only policies that select a pod of this node are compiled.
func (c *Namespaced) Compile() {
	if c.Sets != nil {
		return
	}
	c.Sets, c.Problem = map[string]*Definition{}, c.Policy.Invalid
	if c.Problem != "" {
		return
	}
	if err := checkSelector(c.Policy.Subjects); err != nil {
		c.Problem = "podSelector: " + err.Error() + ": it selects all pods of the namespace"
		return
	}

	for _, d := range []policy.Direction{policy.Ingress, policy.Egress} {
		if !c.Policy.Isolates[d] {
			continue
		}
		w := &writer{policy: c.Policy, direction: d, sets: map[string]*Definition{}}
		if err := w.rules(c.Policy.Rules[d]); err != nil {
			c.Problem = fmt.Sprintf("%s: %v", d, err)
			continue
		}
		c.Lines[d], c.Count[d] = w.lines, w.count.lines-len(w.named)
		c.named = append(c.named, w.named...)
		maps.Copy(c.Sets, w.sets)
	}
}

func checkSelector(s policy.Selector) error {
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
func splitPorts(ports []policy.Port) (intervals []policy.Interval, names []policy.Port, err error) {
	for _, p := range ports {
		switch {
		case p.Name != "":
			if !slices.Contains(names, p) {
				names = append(names, p)
			}
		case p.First == 0:
			intervals = append(intervals, policy.Interval{Proto: p.Proto, First: 0, Last: 65535})
		case p.Last < p.First:
			return nil, nil, fmt.Errorf("endPort %d is below port %d", p.Last, p.First)
		default:
			intervals = append(intervals, policy.Interval{Proto: p.Proto, First: p.First,
				Last: p.Last})
		}
	}

	slices.SortFunc(intervals, policy.Interval.Compare)
	var merged []policy.Interval
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

// checkCIDR returns an error unless a block is of a prefix.
func checkCIDR(b policy.Block) error {
	if !b.CIDR.IsValid() || b.CIDR.Addr().Zone() != "" || b.CIDR.Addr().Is4In6() {
		return fmt.Errorf("ipBlock %s is not a prefix", b.CIDR)
	}
	return nil
}

// RangesOf returns the block less its exceptions as disjoint ranges in ascending order.
func RangesOf(b policy.Block) ([]policy.Range, error) {
	if err := checkCIDR(b); err != nil {
		return nil, err
	}

	cidr := b.CIDR.Masked()
	next, end := cidr.Addr(), policy.LastOf(cidr)
	var out []policy.Range
	for _, p := range SortedPrefixes(b.Except) {
		if !p.IsValid() || p.Addr().Is4() != cidr.Addr().Is4() || !cidr.Contains(p.Addr()) {
			return nil, fmt.Errorf("ipBlock %s does not contain its exception %s", b.CIDR, p)
		}
		if !next.IsValid() || p.Addr().Less(next) {
			continue // inside an earlier exception
		}
		if next.Less(p.Addr()) {
			out = append(out, policy.Range{First: next, Last: p.Addr().Prev()})
		}
		next = policy.LastOf(p).Next()
	}
	if next.IsValid() && !end.Less(next) {
		out = append(out, policy.Range{First: next, Last: end})
	}
	return out, nil
}

// LinesOf returns the lines of one direction for one pod, with the ports that it names.
func (c *Namespaced) LinesOf(d policy.Direction, p *policy.Pod) []policy.Line {
	lines := c.Lines[d]
	if d == policy.Egress || len(c.named) == 0 {
		return lines
	}
	return append(slices.Clone(lines), namedLines(c.named, p)...)
}

// namedLines returns a line for each port of the pod with the name and protocol of an entry in
// named.
func namedLines(named []namedLine, p *policy.Pod) (lines []policy.Line) {
	for _, n := range named {
		for _, port := range p.Ports {
			if port.Name == n.name && port.Proto == n.proto && port.Port != 0 {
				lines = append(lines,
					policy.Line{Peer: n.peer,
						Ports: policy.Interval{Proto: n.proto, First: port.Port, Last: port.Port}})
			}
		}
	}
	return lines
}

// LineCount returns the number of lines and ranges of a policy. It does not depend on Compile. A
// direction that denies everything has none.
func (c *Namespaced) LineCount() int {
	if c.Over {
		return 0
	}
	return c.size
}
