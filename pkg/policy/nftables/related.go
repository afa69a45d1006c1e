package nftables

import (
	"slices"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/pkg/policy"
)

// Conntrack relates an ICMP error to a known connection if the error quotes a packet of the
// connection and goes to that packet's sender. It does not check the source of the error. Any pod
// that knows addresses and ports could otherwise send content of its choice behind a quote, past
// all policies. So errors have chains of their own:
//
//	post, host_errors ─► related ─► errors ┬ from a pod: it received the quoted packet
//	                                       ├ from a tunnel: a node, or received it ─► ends
//	                                       └ from outside: the quoted packet went outside
//
// These hooks are before source NAT, so source and quote have the addresses of the real ends. Only
// IPVS translates earlier, so errors of the pods behind its services are dropped. Errors that this
// node's own stack makes pass the chain processes instead.

// Chains of related packets; the last two have the suffix of a family.
const (
	hostErrors = "host_errors"
	ofRelated  = "related"
	ofErrors   = "errors"
	ofEnds     = "ends"
)

// priorityErrors is in front of IPVS (98) and source NAT (100) at input.
const priorityErrors = 97

// sameFor and sameRoom bound the elements of family.same. Each element is needed for one packet.
const (
	sameFor  = time.Second
	sameRoom = 1 << 14
)

// addRelated adds the chains of related packets.
func addRelated(to map[string]*chain) {
	notICMP := match{"meta l4proto != { icmp, ipv6-icmp }", encode(
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: firstRegister},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: firstRegister, Data: []byte{unix.IPPROTO_ICMP}},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: firstRegister, Data: []byte{unix.IPPROTO_ICMPV6}},
	)}
	// A related packet that is not ICMP opens a connection that the helper of an allowed connection
	// expects.
	rules := []rule{notICMP.verdict(expr.VerdictAccept, "")}
	for _, f := range families {
		is := match{"meta nfproto " + f.name, f.is().exprs}
		rules = append(rules, is.verdict(expr.VerdictGoto, ofErrors+f.suffix))
		to[ofErrors+f.suffix] = fixed(f.errors()...)
		to[ofEnds+f.suffix] = fixed(f.fromEnd().verdict(expr.VerdictAccept, ""), drop(foreign))
	}
	to[ofRelated] = fixed(append(rules, drop(foreign))...)

	host := fixed(
		fromPods(expr.CmpOpNeq).verdict(expr.VerdictAccept, ""),
		related().verdict(expr.VerdictGoto, ofRelated),
	)
	host.hook, host.priority = nftables.ChainHookInput, priorityErrors
	to[hostErrors] = host
}

// errors returns the rules that judge errors. Errors from pods behind a tunnel go to the chain
// ends.
func (f family) errors() []rule {
	node := match{f.name + " saddr @" + f.nodes, encode(f.load(f.saddr, firstRegister),
		&expr.Lookup{SourceRegister: firstRegister, SetName: f.nodes})}
	outside := match{"quoted daddr != @" + f.inside, encode(f.loadQuoted(firstRegister),
		&expr.Lookup{SourceRegister: firstRegister, SetName: f.inside, Invert: true})}
	return []rule{
		fromPods(expr.CmpOpEq).and(f.fromSource(f.self)).verdict(expr.VerdictAccept, ""),
		rule(fromPods(expr.CmpOpEq).and(match(drop(foreign)))),
		toPods(expr.CmpOpNeq).verdict(expr.VerdictAccept, ""),
		fromTunnel().and(node).verdict(expr.VerdictAccept, ""),
		fromTunnel().verdict(expr.VerdictGoto, ofEnds+f.suffix),
		outside.verdict(expr.VerdictAccept, ""),
		drop(foreign),
	}
}

// fromEnd matches errors whose source is the destination of the packet that they quote.
//
// No expression of Linux 6.1 compares two addresses of a packet. So the destination is added to a
// set first, twice in one key, and then looked up beside the source. All elements are such pairs,
// so elements of other packets do no harm. While the set is full, such errors are dropped.
func (f family) fromEnd() match {
	twice := match{"update @" + f.same + " { quoted daddr . quoted daddr }", encode(
		f.loadQuoted(firstRegister), f.loadQuoted(firstRegister+f.size/4),
		&expr.Dynset{SrcRegKey: firstRegister, SetName: f.same,
			Operation: unix.NFT_DYNSET_OP_UPDATE})}
	return twice.and(f.fromSource(f.same))
}

// fromSource matches errors whose quoted destination and source are a pair of a set.
func (f family) fromSource(set string) match {
	return match{"quoted daddr . " + f.name + " saddr @" + set, encode(
		f.loadQuoted(firstRegister), f.load(f.saddr, firstRegister+f.size/4),
		&expr.Lookup{SourceRegister: firstRegister, SetName: set})}
}

// loadQuoted loads the destination of the packet that an ICMP error quotes.
func (f family) loadQuoted(register uint32) expr.Any {
	return &expr.Payload{DestRegister: register, Base: expr.PayloadBaseTransportHeader,
		Offset: f.quoted, Len: f.size}
}

// isInside reports whether a set judges only ICMP errors.
func isInside(name string) bool {
	return slices.ContainsFunc(families, func(f family) bool {
		return name == f.inside || name == f.nodes
	})
}

// makeInside makes the sets that the chains of related packets look up, if the plan changed them.
func (p *maker) makeInside(plan *policy.Plan) {
	if p.inside != nil && slices.Equal(p.insideOf.NodeAddrs, plan.NodeAddrs) &&
		slices.Equal(p.insideOf.Inside, plan.Inside) {
		return
	}
	p.insideOf = policy.Plan{NodeAddrs: plan.NodeAddrs, Inside: plan.Inside}
	p.inside = map[string]*set{}
	for i, f := range families {
		pair, _ := nftables.ConcatSetType(f.addr, f.addr)
		p.inside[f.same] = &set{key: pair, concat: true, elements: union{{}}, timeout: sameFor,
			room: sameRoom}
		p.inside[f.inside] = &set{key: f.addr, interval: true,
			elements: union{intervals(rangesOf(plan.Inside, i))}}
		p.inside[f.nodes] = &set{key: f.addr, elements: union{{}}}
		p.inside[f.logged] = f.loggedSet()
	}
	for _, a := range plan.NodeAddrs {
		p.inside[families[indexOf(a)].nodes].elements[0][key(a.AsSlice())] = true
	}
}
