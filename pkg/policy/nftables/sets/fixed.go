package sets

import (
	"maps"
	"slices"
	"time"

	"github.com/google/nftables"

	"github.com/kubeveil/kubeveil/pkg/policy"
)

// AnswersDropped is the time for which answers to an ended flow are dropped. It is the time for
// which conntrack remembers a UDP flow without an answer (nf_conntrack_udp_timeout).
const AnswersDropped = 30 * time.Second

// loggedFor and loggedRoom bound the elements of Family.Logged: sources with their shares.
const (
	loggedFor  = 10 * time.Second
	loggedRoom = 1 << 14
)

// sameFor and sameRoom bound the elements of Family.Same. Each element is needed for one packet.
const (
	sameFor  = time.Second
	sameRoom = 1 << 14
)

// makeMembers makes the sets of members of each group, and the pairs of addresses with which pods
// reach themselves, if they changed.
func (p *Maker) makeMembers(plan *policy.Plan) {
	if p.members != nil && maps.Equal(p.membersOf.Groups, plan.Groups) &&
		maps.Equal(p.membersOf.Members, plan.Members) && slices.Equal(p.membersOf.Own, plan.Own) {
		return
	}
	p.membersOf = policy.Plan{Groups: plan.Groups, Members: plan.Members, Own: plan.Own}
	sets := map[string]*Set{}
	p.members = sets

	for _, f := range Families {
		pair, _ := nftables.ConcatSetType(f.Addr, f.Addr)
		sets[f.Self] = &Set{Key: pair, Concat: true, Elements: Union{{}}}
		sets[f.Own] = &Set{Key: f.Addr, Elements: Union{{}}}
		ends, _ := nftables.ConcatSetType(f.Addr, f.Addr, nftables.TypeInetProto,
			nftables.TypeInetService, nftables.TypeInetService)
		sets[f.Ended] = &Set{Key: ends, Concat: true, Elements: Union{{}}, Timeout: AnswersDropped}
		for name := range plan.Groups {
			sets[f.Members+name] = &Set{Key: f.Addr, Elements: Union{{}}}
		}
	}
	for _, a := range plan.Own {
		sets[Families[IndexOf(a)].Own].Elements[0][Key(a.AsSlice())] = true
	}
	for _, m := range plan.Members {
		for _, a := range m.Addrs {
			f := Families[IndexOf(a)]
			sets[f.Members+m.Group].Elements[0][Key(a.AsSlice())] = true
			sets[f.Self].Elements[0][Key(append(a.AsSlice(), a.AsSlice()...))] = true
		}
	}
}

// makeInside makes the sets that the chains of related packets look up, if the plan changed them.
func (p *Maker) makeInside(plan *policy.Plan) {
	if p.inside != nil && slices.Equal(p.insideOf.NodeAddrs, plan.NodeAddrs) &&
		slices.Equal(p.insideOf.Inside, plan.Inside) {
		return
	}
	p.insideOf = policy.Plan{NodeAddrs: plan.NodeAddrs, Inside: plan.Inside}
	p.inside = map[string]*Set{}
	for i, f := range Families {
		pair, _ := nftables.ConcatSetType(f.Addr, f.Addr)
		p.inside[f.Same] = &Set{Key: pair, Concat: true, Elements: Union{{}}, Timeout: sameFor,
			Room: sameRoom}
		p.inside[f.Inside] = &Set{Key: f.Addr, Interval: true,
			Elements: Union{intervals(rangesOf(plan.Inside, i))}}
		p.inside[f.Nodes] = &Set{Key: f.Addr, Elements: Union{{}}}
		p.inside[f.Logged] = &Set{Key: f.Addr, Elements: Union{{}}, Timeout: loggedFor,
			Room: loggedRoom}
	}
	for _, a := range plan.NodeAddrs {
		p.inside[Families[IndexOf(a)].Nodes].Elements[0][Key(a.AsSlice())] = true
	}
}
