package compile

import (
	"fmt"
	"maps"
	"slices"
	"strconv"

	"github.com/kubeveil/kubeveil/pkg/policy"
)

// writer compiles one direction of one policy.
type writer struct {
	policy    policy.Policy
	direction policy.Direction
	lines     []policy.Line
	named     []namedLine
	sets      map[string]*Definition
	// count counts lines before any are joined.
	count counter
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
		text := portsText(r.Ports)
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
	if err == nil {
		err = w.count.add(r, len(intervals), len(names))
	}
	if err != nil {
		return nil, err
	}

	parsed := &parsedRule{all: len(r.Peers) == 0, intervals: intervals, names: names}
	if parsed.all { // includes pods of unknown namespaces, and all other addresses
		parsed.peers = []*Definition{{Kind: policy.KindPods}}
		return parsed, nil
	}
	parsed.peers = make([]*Definition, len(r.Peers))
	for i, p := range r.Peers {
		parsed.peers[i] = w.define(p)
	}
	return parsed, nil
}

// portsText returns a text that is equal for equal ports.
func portsText(ports []policy.Port) string {
	var b []byte
	for _, p := range ports {
		b = append(b, byte(p.Proto), byte(p.First>>8), byte(p.First), byte(p.Last>>8), byte(p.Last))
		b = strconv.AppendQuote(b, p.Name)
	}
	return string(b)
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
	if len(defs) < minJoined {
		return defs
	}
	byText := map[string]*Definition{}
	for _, d := range defs {
		if d.Kind == policy.KindPods {
			byText[d.text()] = d
		} else {
			out = append(out, d)
		}
	}
	if len(byText) < minJoined {
		return defs
	}
	joined := &Definition{Kind: policy.KindPods}
	for _, text := range slices.Sorted(maps.Keys(byText)) {
		joined.Any = append(joined.Any, byText[text])
	}
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

// define returns the definition of a peer that was counted.
func (w *writer) define(p policy.Peer) *Definition {
	switch {
	case p.Block != nil:
		return &Definition{Kind: policy.KindBlock, Block: p.Block}
	case p.Nodes != nil:
		return &Definition{Kind: policy.KindNodes, Pods: *p.Nodes, Denied: w.denies}
	}
	def := &Definition{Kind: policy.KindPods, Namespace: w.policy.Namespace,
		Namespaces: p.Namespaces}
	if p.Namespaces != nil {
		def.Namespace = ""
	}
	if p.Pods != nil {
		def.Pods = *p.Pods
	}
	return def
}
