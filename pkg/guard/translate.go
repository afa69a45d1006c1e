package guard

import (
	"fmt"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/pkg/abi"
)

// A pod's packet to a node goes through the tunnel, but other programs may translate its source to
// this node's address: kube-proxy with masqueradeAll or without a cluster CIDR, or the rules of a
// former network. The node's reply would then be host to host, in clear:
//
//	pod ─► source becomes node-1's ─► veil0 ═► node-2: answers node-1 ─► NIC, in clear
//
// So a pod keeps its source towards nodes. A packet that lost it nevertheless (its connection is
// older than the rule) does not enter the tunnel. The same holds for packets of other nodes' pods
// that pass this node, for example to a NodePort: they are routed and judged like those of this
// node's pods. Their source is decided in translate_self.go.

// beforeSourceNAT is before priority srcnat (100): the first chain that translates decides.
const beforeSourceNAT = 90

// ctOriginal and ctReply are IP_CT_DIR_ORIGINAL and IP_CT_DIR_REPLY (nf_conntrack_tuple_common.h).
const ctOriginal, ctReply = 0, 1

// family is the header fields and sets of an address family.
type family struct {
	saddr, daddr, nodes, ranges, vips, self, own, source, endpoints, outer string
}

var families = []family{
	{"ip saddr", "ip daddr", setNodes4, setRanges4, setVIPs4, setSelf4, setOwn4, setSource4,
		setEndpoints4, setOuter4},
	{"ip6 saddr", "ip6 daddr", setNodes6, setRanges6, setVIPs6, setSelf6, setOwn6, setSource6,
		setEndpoints6, setOuter6},
}

// skipTunnelled accepts packets out of a tunnel and returns them the mark of pods' packets. Their
// routing then uses the same table, which reaches nodes only by a tunnel.
func skipTunnelled() rule {
	tunnelled := inGroup(abi.TunnelGroup)
	exprs := append(tunnelled.exprs, setMark(abi.PodMark)...)
	return rule{fmt.Sprintf("%s mark set mark | %#x return", tunnelled.text, abi.PodMark),
		append(exprs, &expr.Verdict{Kind: expr.VerdictReturn})}
}

// setMark sets the bits of mark.
func setMark(mark uint32) []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyMARK, Register: 1},
		&expr.Bitwise{
			SourceRegister: 1, DestRegister: 1, Len: 4,
			Mask: binaryutil.NativeEndian.PutUint32(^mark),
			Xor:  binaryutil.NativeEndian.PutUint32(mark),
		},
		&expr.Meta{Key: expr.MetaKeyMARK, SourceRegister: true, Register: 1},
	}
}

// toNode matches packets to nodes, by family.
func (f family) toNode() []expr.Any {
	return append(load(f.daddr), &expr.Lookup{SourceRegister: 1, SetName: f.nodes})
}

// keepSource translates the source to itself: a connection is translated only once. Packets from a
// pod or a tunnel are recognized by their link; others with the mark belong to a client of a
// service.
func keepSource() (rules []rule) {
	out := ofGroup("oif", expr.MetaKeyOIFGROUP, abi.TunnelGroup)
	pods := &match{fmt.Sprintf("mark %#x", abi.PodMark), marked()}
	for _, f := range families {
		for _, from := range []*match{fromInside(), pods} {
			text := fmt.Sprintf("%s %s %s @%s snat to %s", out.text, from.text, f.daddr, f.nodes,
				f.saddr)
			exprs := slices.Concat(out.exprs, from.exprs, f.toNode(), load(f.saddr))
			rules = append(rules, rule{text, append(exprs, f.sourceKept())})
		}
	}
	return rules
}

// sourceKept translates the source to the address in register 1, its own.
func (f family) sourceKept() expr.Any {
	return &expr.NAT{
		Type: expr.NATTypeSourceNAT, Family: uint32(fields[f.saddr].proto), RegAddrMin: 1,
	}
}

// enterTunnel judges packets that are about to enter a tunnel. Most go to pods and pass with the
// first condition of their family; pods' packets to nodes remain.
func enterTunnel() (rules []rule) {
	for _, f := range families {
		notNode := &match{fmt.Sprintf("%s not @%s", f.daddr, f.nodes),
			append(load(f.daddr), &expr.Lookup{SourceRegister: 1, SetName: f.nodes, Invert: true})}
		rules = append(rules, ruleOf(notNode, expr.VerdictReturn, ""))
	}
	hosts := &match{fmt.Sprintf("mark & %#x == 0", abi.PodMark), lacksMark(abi.PodMark)}
	rules = append(rules, dropTranslated(fromInside())...)
	return append(append(rules, ruleOf(hosts, expr.VerdictReturn, "")),
		dropTranslated(unserved())...)
}

// dropTranslated drops packets that open or continue such a connection. Replies rightly have a
// translated source. The node's own marked packets, its probes, have no input link. A service's
// client that came in by a guarded link also has a source of its own; packets from a pod or a
// tunnel have theirs from the ranges.
func dropTranslated(of *match) (rules []rule) {
	for _, f := range families {
		rules = append(rules, dropTranslatedOf(f, of))
	}
	return rules
}

// inGroup matches packets that came in by a link of a group.
func inGroup(group uint32) *match { return ofGroup("iif", expr.MetaKeyIIFGROUP, group) }

func dropTranslatedOf(f family, of *match) rule {
	text := fmt.Sprintf("iif %s ct direction original %s not @%s counter %s drop", of.text, f.saddr,
		f.ranges, translated)
	exprs := slices.Concat([]expr.Any{
		&expr.Meta{Key: expr.MetaKeyIIF, Register: 1},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: make([]byte, 4)},
	}, of.exprs, []expr.Any{
		&expr.Ct{Key: expr.CtKeyDIRECTION, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{ctOriginal}},
	}, load(f.saddr), []expr.Any{
		&expr.Lookup{SourceRegister: 1, SetName: f.ranges, Invert: true},
		&expr.Objref{Type: unix.NFT_OBJECT_COUNTER, Name: translated},
		&expr.Verdict{Kind: expr.VerdictDrop},
	})
	return rule{text, exprs}
}

// marked matches packets of pods.
func marked() []expr.Any { return hasMark(abi.PodMark) }

// hasMark and lacksMark match packets with a mark and without it.
func hasMark(mark uint32) []expr.Any   { return compareMark(mark, expr.CmpOpNeq) }
func lacksMark(mark uint32) []expr.Any { return compareMark(mark, expr.CmpOpEq) }

// compareMark compares the bits of mark with 0.
func compareMark(mark uint32, op expr.CmpOp) []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyMARK, Register: 1},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4,
			Mask: binaryutil.NativeEndian.PutUint32(mark), Xor: make([]byte, 4)},
		&expr.Cmp{Op: op, Register: 1, Data: make([]byte, 4)},
	}
}

// load matches the family of a field and puts the field into register 1.
func load(field string) []expr.Any {
	f := fields[field]
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{f.proto}},
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: f.offset,
			Len: f.len},
	}
}

// keepChain decides sources before any other chain can.
func keepChain() chain {
	rules := slices.Concat(sendFromSelf(), keepSource(), sendFromOwn())
	return chain{"keep_source", nftables.ChainTypeNAT, nftables.ChainHookPostrouting,
		nftables.ChainPriorityRef(beforeSourceNAT), rules}
}
