package compile

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/kubeveil/kubeveil/pkg/policy"
)

// writer compiles one direction of one policy.
type writer struct {
	policy    policy.Policy
	direction policy.Direction
	lines     []policy.Line
	named     []namedLine
	sets      map[string]*Definition
	ranges    int
	// count is the number of lines before any are joined.
	count int
	// denies reports whether the rule denies.
	denies bool
}

// rules compiles the rules of a NetworkPolicy. It joins rules with the same ports, since their
// order has no meaning.
func (w *writer) rules(rules []policy.Rule) error {
	var joined []*parsedRule
	byPorts := map[string]*parsedRule{}
	for i, r := range rules {
		parsed, err := w.parse(r)
		if err != nil {
			return fmt.Errorf("rule %d: %w", i, err)
		}
		text := fmt.Sprint(r.Ports)
		if same := byPorts[text]; same != nil && !parsed.all {
			same.peers = append(same.peers, parsed.peers...)
			continue
		}
		if joined = append(joined, parsed); !parsed.all {
			byPorts[text] = parsed
		}
	}
	for _, r := range joined {
		w.write(r)
	}
	return nil
}

// rule compiles one rule.
func (w *writer) rule(r policy.Rule) error {
	parsed, err := w.parse(r)
	if err == nil {
		w.write(parsed)
	}
	return err
}

// parsedRule is a rule that exceeds no bound.
type parsedRule struct {
	// all reports whether the rule allows all peers. peers then has one definition, of all pods.
	all   bool
	peers []*Definition
	// intervals and names are the ports. If both are empty, the rule is for all ports.
	intervals []policy.Interval
	names     []policy.Port
}

func (w *writer) parse(r policy.Rule) (*parsedRule, error) {
	intervals, names, err := splitPorts(r.Ports)
	if err != nil {
		return nil, err
	}

	parsed := &parsedRule{all: len(r.Peers) == 0, intervals: intervals, names: names}
	peers := r.Peers
	if parsed.all {
		peers = []policy.Peer{{Namespaces: &policy.Selector{}}}
	}
	for _, p := range peers {
		def, err := w.define(p)
		if err != nil {
			return nil, err
		}
		if parsed.all {
			def.Namespaces = nil // includes pods of unknown namespaces, and all other addresses
		}
		if def.Kind == policy.KindNodes && len(names) > 0 {
			return nil, errors.New("nodes have no named ports")
		}
		parsed.peers = append(parsed.peers, def)
		if w.count += max(1, len(intervals)+len(names)); w.count > MaxLines {
			return nil, fmt.Errorf("the policy needs more than %d lines of peers and port ranges",
				MaxLines)
		}
	}
	return parsed, nil
}

// write adds the lines of a rule.
func (w *writer) write(r *parsedRule) {
	for _, def := range joinPods(r.peers) {
		peer := ""
		allPorts := len(r.intervals)+len(r.names) == 0
		if !r.all && (len(r.intervals) > 0 || allPorts) {
			peer = w.use(def)
		}
		if allPorts {
			w.lines = append(w.lines, policy.Line{Peer: peer})
		}
		for _, i := range r.intervals {
			w.lines = append(w.lines, policy.Line{Peer: peer, Ports: i})
		}
		for _, n := range r.names {
			w.namedPort(def, n, r.all)
		}
	}
}

// minJoined is the smallest number of pod selectors that become one set, so that each pod is
// checked against fewer sets. Below it each selector has its own set, which other policies can
// share.
const minJoined = 8

// joinPods makes one definition of the definitions that select pods, if there are many.
func joinPods(defs []*Definition) (out []*Definition) {
	joined := &Definition{Kind: policy.KindPods}
	texts := map[string]bool{}
	for _, d := range defs {
		switch {
		case d.Kind != policy.KindPods:
			out = append(out, d)
		case !texts[d.text()]:
			texts[d.text()] = true
			joined.Any = append(joined.Any, d)
		}
	}
	if len(joined.Any) < minJoined {
		return defs
	}
	slices.SortFunc(joined.Any, func(a, b *Definition) int {
		return strings.Compare(a.text(), b.text())
	})
	return append(out, joined)
}

// namedPort adds a line that allows a named port. At ingress the line depends on the subject; at
// egress its set holds the peers that have the port.
func (w *writer) namedPort(def *Definition, p policy.Port, all bool) {
	if w.direction == policy.Egress {
		named := *def
		named.Kind, named.Port, named.Proto = policy.KindNamed, p.Name, p.Proto
		w.lines = append(w.lines, policy.Line{Peer: w.use(&named)})
		return
	}
	n := namedLine{proto: p.Proto, name: p.Name}
	if !all {
		n.peer = w.use(def)
	}
	w.named = append(w.named, n)
}

func (w *writer) use(d *Definition) string {
	name := d.Kind.Prefix() + ID(d.text())
	w.sets[name] = d
	return name
}

func (w *writer) define(p policy.Peer) (*Definition, error) {
	if p.Block != nil {
		ranges, err := RangesOf(*p.Block)
		if w.ranges += len(ranges); err == nil && w.ranges > MaxRanges {
			err = fmt.Errorf("the ipBlocks have more than %d ranges", MaxRanges)
		}
		return &Definition{Kind: policy.KindBlock, Block: p.Block}, err
	}

	if p.Nodes != nil {
		return &Definition{Kind: policy.KindNodes, Pods: *p.Nodes, Denied: w.denies},
			checkSelector(*p.Nodes)
	}

	def := &Definition{Kind: policy.KindPods, Namespace: w.policy.Namespace,
		Namespaces: p.Namespaces}
	if p.Namespaces != nil {
		def.Namespace = ""
		if err := checkSelector(*p.Namespaces); err != nil {
			return nil, err
		}
	}
	if p.Pods != nil {
		def.Pods = *p.Pods
	}
	return def, checkSelector(def.Pods)
}
