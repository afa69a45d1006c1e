package chains

import (
	"encoding/binary"
	"net/netip"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/nft"
	"github.com/kubeveil/kubeveil/pkg/abi"
)

// WireGuard sends to the source of the last authentic datagram. So a host without any key that
// relays datagrams for two seconds becomes the endpoint of both nodes permanently:
//
//	node-1 ─► held back ┐                     ┌ held back ◄─ node-2
//	                    └─► relay ─► node-2: answers to the relay from now on
//
// Tunnel datagrams are therefore accepted only from addresses of believed nodes, at the hook input.
//
// A node must send from such an address. Its kernel chooses the source as usual (inet_select_addr,
// RFC 6724), so a node with a further address may choose one that no Node has. At the hook output,
// before connection tracking, such a source is replaced by the preferred one. The rule only
// rewrites the header and creates no NAT entry, because the peer replies to the new source, and
// WireGuard then uses that address itself. If the node has no address of that family, the datagram
// is dropped, as the peer would drop it.

// Datagrams sets which sources of tunnel datagrams are accepted. The zero value accepts any.
type Datagrams struct {
	// Port is the UDP port of the tunnels.
	Port uint16
	// Sources are the addresses of believed nodes; nil means any source.
	Sources []netip.Addr
	// Add accepts Sources in addition to the sources in force. If any source is accepted now, any
	// source stays accepted.
	Add bool
	// Bind makes this node's tunnel datagrams leave from an address in Settings.NodeAddrs: any
	// other source is replaced by the preferred one of Settings.SelfAddrs. If SelfAddrs has no
	// address of the datagram's family, the datagram is dropped.
	Bind bool
}

// Equal reports whether d and e are the same, with their sources in the same order. Nil equals only
// nil.
func (d *Datagrams) Equal(e *Datagrams) bool {
	if d == nil || e == nil {
		return d == e
	}
	return d.Port == e.Port && same(d.Sources, e.Sources) && d.Add == e.Add && d.Bind == e.Bind
}

// putDatagrams plans the sets that Datagrams fills.
func putDatagrams(t *nft.Table, d *Datagrams, self []netip.Addr) {
	if d == nil {
		return
	}
	if d.Sources != nil {
		put(t, distinct(d.Sources), setEndpoints)
		t.Set(setTunnelPort).Elements = []nft.Element{
			nft.Key(binary.BigEndian.AppendUint16(nil, d.Port))}
	}
	if d.Bind {
		put(t, firstOfEach(self), setOuter)
	}
}

// keepDatagrams keeps the elements in force that d does not determine.
func keepDatagrams(t, have *nft.Table, d *Datagrams) {
	if d != nil && !d.Add {
		return
	}
	t.Set(setTunnelPort).Elements = have.Set(setTunnelPort).Elements
	if d == nil {
		keep(t, have, setEndpoints, setOuter)
		return
	}

	for _, f := range families {
		set, old := t.Set(f.endpoints), have.Set(f.endpoints).Elements
		if len(t.Set(setTunnelPort).Elements) == 0 {
			set.Elements = nil
		}
		set.Elements = distinct(append(set.Elements, old...))
	}
}

// takeDatagrams returns the chain that judges datagrams that arrive for tunnels.
func takeDatagrams() nft.Chain {
	rules := []nft.Rule{
		nft.All(nft.Proto(nft.Neq, unix.IPPROTO_UDP), nft.Return),
		nft.All(nft.Rule{nft.Load(nft.Transport, 2, 2), nft.NotIn(setTunnelPort)}, nft.Return),
	}
	for _, f := range families {
		rules = append(rules, nft.All(f.saddr.In(f.endpoints), nft.Return))
	}
	return nft.Base("take_datagrams", nftables.ChainTypeFilter, nftables.ChainHookInput,
		*nftables.ChainPriorityFilter, append(rules, Drop(TunnelUnknownSource))...)
}

// bindDatagrams returns the chain that replaces sources of datagrams that tunnels send.
func bindDatagrams() nft.Chain {
	var rules []nft.Rule
	for _, f := range families {
		rules = append(rules, nft.All(encrypted(), f.saddr.NotIn(f.nodes), nft.Rule{
			&expr.Immediate{Register: 1, Data: nft.Native(abi.TunnelGroup)},
			nft.Value(f.outer),
			f.writeSource(),
		}))
	}
	// An address of this node that is not in the set of nodes is contested: two Nodes list it. It
	// is the preferred source only if the node has no other address.
	for i, f := range families {
		bound := nft.Rule{&expr.Immediate{Register: 1, Data: nft.Native(abi.TunnelGroup)},
			nft.Value(families[1-i].outer)}
		rules = append(rules, nft.All(encrypted(), f.saddr.NotIn(f.nodes), f.saddr.NotIn(f.own),
			bound, Drop(TunnelUnknownSource)))
	}
	return nft.Base("bind_datagrams", nftables.ChainTypeFilter, nftables.ChainHookOutput,
		*nftables.ChainPriorityRaw, rules...)
}

// headerChecksum4 is the offset of the checksum in an IPv4 header (RFC 791).
const headerChecksum4 = 10

// writeSource writes register 1 to the source address and corrects the checksums. The library can
// only pass the transport header's checksum together with one of the network header, which IPv6
// lacks. The source address stands in for it: nft_payload_set_eval (net/netfilter/nft_payload.c)
// writes the address after the checksum.
func (f family) writeSource() expr.Any {
	checksum := f.saddr.Offset
	if f.saddr.Family == unix.NFPROTO_IPV4 {
		checksum = headerChecksum4
	}
	return &expr.Payload{
		OperationType: expr.PayloadWrite, SourceRegister: 1,
		Base: nft.Network, Offset: f.saddr.Offset, Len: f.saddr.Size,
		CsumType: expr.CsumTypeInet, CsumOffset: checksum,
		CsumFlags: unix.NFT_PAYLOAD_L4CSUM_PSEUDOHDR,
	}
}
