package chains

import (
	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
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
// Conntrack does not know connections of the fast path. Errors about them are judged in the same way,
// and then by policies like first packets:
//
//	post ─► unknown ─► unknown_errors ─► unknown_ends
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

	ofUnknown = "unknown"
	// prefixUnknown is in front of the chains of errors about connections that are not known.
	prefixUnknown = "unknown_"
)

// priorityErrors is in front of IPVS (98) and source NAT (100) at input.
const priorityErrors = 97

// addRelated adds the chains of related packets.
func addRelated(to map[string]*Chain) {
	notICMP := match{"meta l4proto != { icmp, ipv6-icmp }", encode(
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: firstRegister},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: firstRegister, Data: []byte{unix.IPPROTO_ICMP}},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: firstRegister, Data: []byte{unix.IPPROTO_ICMPV6}},
	)}
	// A related packet that is not ICMP opens a connection that the helper of an allowed connection
	// expects.
	rules := []Rule{notICMP.verdict(expr.VerdictAccept, "")}
	var first []Rule
	for _, f := range families {
		is := match{"meta nfproto " + f.Name, f.is().Exprs}
		rules = append(rules, is.verdict(expr.VerdictGoto, ofErrors+f.Suffix))
		f.addErrors(to, "", expr.VerdictAccept)
		for _, types := range f.errors {
			first = append(first,
				f.isError(types).verdict(expr.VerdictGoto, prefixUnknown+ofErrors+f.Suffix))
		}
		f.addErrors(to, prefixUnknown, expr.VerdictReturn)
	}
	to[ofRelated] = fixed(append(rules, drop(foreign))...)
	to[ofUnknown] = fixed(first...)

	host := fixed(
		fromPods(expr.CmpOpNeq).verdict(expr.VerdictAccept, ""),
		related().verdict(expr.VerdictGoto, ofRelated),
	)
	host.Hook, host.Priority = nftables.ChainHookInput, priorityErrors
	to[hostErrors] = host
}

// addErrors adds the chains that judge errors, with a verdict for those that pass. Errors from pods
// behind a tunnel go to the chain ends.
func (f family) addErrors(to map[string]*Chain, prefix string, passes expr.VerdictKind) {
	node := match{f.Name + " saddr @" + f.Nodes, encode(f.load(f.saddr, firstRegister),
		&expr.Lookup{SourceRegister: firstRegister, SetName: f.Nodes})}
	outside := match{"quoted daddr != @" + f.Inside, encode(f.loadQuoted(firstRegister),
		&expr.Lookup{SourceRegister: firstRegister, SetName: f.Inside, Invert: true})}
	to[prefix+ofErrors+f.Suffix] = fixed(
		fromPods(expr.CmpOpEq).and(f.fromSource(f.Self)).verdict(passes, ""),
		Rule(fromPods(expr.CmpOpEq).and(match(drop(foreign)))),
		toPods(expr.CmpOpNeq).verdict(passes, ""),
		fromTunnel().and(node).verdict(passes, ""),
		fromTunnel().verdict(expr.VerdictGoto, prefix+ofEnds+f.Suffix),
		outside.verdict(passes, ""),
		drop(foreign),
	)
	to[prefix+ofEnds+f.Suffix] = fixed(f.fromEnd().verdict(passes, ""), drop(foreign))
}

// fromEnd matches errors whose source is the destination of the packet that they quote.
//
// No expression of Linux 6.1 compares two addresses of a packet. So the destination is added to a
// set first, twice in one key, and then looked up beside the source. All elements are such pairs,
// so elements of other packets do no harm. While the set is full, such errors are dropped.
func (f family) fromEnd() match {
	twice := match{"update @" + f.Same + " { quoted daddr . quoted daddr }", encode(
		f.loadQuoted(firstRegister), f.loadQuoted(firstRegister+f.Size/4),
		&expr.Dynset{SrcRegKey: firstRegister, SetName: f.Same,
			Operation: unix.NFT_DYNSET_OP_UPDATE})}
	return twice.and(f.fromSource(f.Same))
}

// fromSource matches errors whose quoted destination and source are a pair of a set.
func (f family) fromSource(set string) match {
	return match{"quoted daddr . " + f.Name + " saddr @" + set, encode(
		f.loadQuoted(firstRegister), f.load(f.saddr, firstRegister+f.Size/4),
		&expr.Lookup{SourceRegister: firstRegister, SetName: set})}
}

// loadQuoted loads the destination of the packet that an ICMP error quotes.
func (f family) loadQuoted(register uint32) expr.Any {
	return &expr.Payload{DestRegister: register, Base: expr.PayloadBaseTransportHeader,
		Offset: f.quoted, Len: f.Size}
}
