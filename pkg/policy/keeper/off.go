package keeper

import (
	"errors"
	"fmt"
	"net/netip"
	"sync"

	"github.com/kubeveil/kubeveil/pkg/policy"
	"github.com/kubeveil/kubeveil/pkg/policy/keeper/known"
)

// off is the part of a Feature that answers where no policies are enforced. It keeps no pods and no
// policies: veilctl hands them over with each question.
type off struct {
	judge *known.Judge

	mu sync.Mutex // guards the fields below, whose contents do not change
	// addrs and prefixes are the addresses and pod prefixes of nodes. Nil means that the node table
	// is not known yet.
	addrs    map[string][]netip.Addr
	prefixes map[string][]netip.Prefix
}

func (f *off) set(addrs map[string][]netip.Addr, prefixes map[string][]netip.Prefix) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.addrs, f.prefixes = addrs, prefixes
}

// errNothingHanded is the answer to a question without objects where no policies are enforced.
var errNothingHanded = errors.New("no policies are enforced on this node (policy: none), so veild " +
	"keeps no pods and no policies: write --hand-over, and veilctl reads them with your rights; or " +
	"set policy: kubernetes")

// judges returns what answers questions about known connections. Where no policies are enforced, it
// answers from h.
func (f *Feature) judges(h *policy.Handed) (*known.Judge, error) {
	switch {
	case f.keeper != nil:
		return f.keeper.known, nil
	case h == nil || len(h.Protobuf) == 0:
		return nil, errNothingHanded
	}
	return f.off.judge.With(func() (*known.View, error) { return f.viewOf(*h) }), nil
}

// viewOf returns the state from which package known answers questions about h.
func (f *Feature) viewOf(h policy.Handed) (*known.View, error) {
	f.off.mu.Lock()
	addrs, prefixes := f.off.addrs, f.off.prefixes
	f.off.mu.Unlock()
	if prefixes == nil {
		return nil, errors.New("veild has not read the nodes' pod prefixes since it started: see " +
			"the problems in veilctl status")
	}
	node := f.o.Config.Node
	objects, err := f.o.Source.ReadHanded(h, node)
	if err != nil {
		return nil, err
	}
	records, err := f.o.Paths.List()
	if err != nil {
		return nil, err
	}

	p := known.Places{Node: node, Options: policyOptions(f.o.Config), Prefixes: prefixes,
		Addrs: addrs, Records: records}
	if f.o.Links != nil {
		p.Opened = f.o.Links.Opened
	}
	v := p.View(objects)
	n := len(objects.Policies.Namespaced) + len(objects.Policies.Cluster)
	v.Notes = append(v.Notes, fmt.Sprintf("no policies are enforced on this node (policy: none). "+
		"The result shows what would end if it enforced the %d policies of the API server, with "+
		"your changes", n))
	return v, nil
}
