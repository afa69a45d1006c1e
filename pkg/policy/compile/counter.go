package compile

import (
	"errors"
	"fmt"

	"github.com/kubeveil/kubeveil/pkg/policy"
)

// counter counts what the rules of one direction come to. Counting takes little time, so policies
// beyond a budget are counted and not compiled.
type counter struct {
	// lines is the number of lines before any are joined: one for each peer and range of ports.
	lines int
	// ranges is the number of ranges of blocks.
	ranges int
}

// addAll counts rules. It returns an error if the direction denies everything, because a rule is
// wrong or exceeds a bound.
func (n *counter) addAll(rules []policy.Rule) error {
	for _, r := range rules {
		intervals, names := 1, 0
		if len(r.Ports) != 1 || r.Ports[0].Name != "" || r.Ports[0].Last < r.Ports[0].First {
			i, named, err := splitPorts(r.Ports)
			if err != nil {
				return err
			}
			intervals, names = len(i), len(named)
		}
		if err := n.add(r, intervals, names); err != nil {
			return err
		}
	}
	return nil
}

// add counts one rule, with so many ranges and names of ports.
func (n *counter) add(r policy.Rule, intervals, names int) error {
	if n.lines += max(1, len(r.Peers)) * max(1, intervals+names); n.lines > MaxLines {
		return fmt.Errorf("the policy needs more than %d lines of peers and port ranges", MaxLines)
	}
	for _, p := range r.Peers {
		if p.Nodes != nil && p.Block == nil && names > 0 {
			return errors.New("nodes have no named ports")
		}
		if err := n.addPeer(p); err != nil {
			return err
		}
	}
	return nil
}

// addPeer counts the ranges of a peer, and checks its selectors.
func (n *counter) addPeer(p policy.Peer) error {
	if p.Block == nil {
		for _, s := range []*policy.Selector{p.Nodes, p.Namespaces, p.Pods} {
			if s == nil {
				continue
			}
			if err := checkSelector(*s); err != nil {
				return err
			}
		}
		return nil
	}

	ranges, err := 1, checkCIDR(*p.Block)
	if err == nil && len(p.Block.Except) > 0 {
		var all []policy.Range
		all, err = RangesOf(*p.Block)
		ranges = len(all)
	}
	if n.ranges += ranges; err == nil && n.ranges > MaxRanges {
		err = fmt.Errorf("the ipBlocks have more than %d ranges", MaxRanges)
	}
	return err
}
