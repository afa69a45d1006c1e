package guard

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/pkg/abi"
)

// WireGuard sends to the source of the last authentic datagram. So a host that relays datagrams for
// two seconds, without any key, becomes the endpoint of both nodes and stays it:
//
//	node-1 ─► held back ┐                     ┌ held back ◄─ node-2
//	                    └─► relay ─► node-2: answers to the relay from now on
//
// Tunnel datagrams are therefore accepted only from addresses of believed nodes, at the hook input.
//
// A node must send from such an address. Its kernel chooses the source as usual (inet_select_addr,
// RFC 6724), so a node with a further address may choose one that no Node has. At the hook output,
// before connection tracking, such a source is replaced by the preferred one. This changes the
// header and is no NAT: the peer replies to the new source, and WireGuard then uses it by itself.

// Datagrams says which sources of tunnel datagrams are accepted. The zero value accepts any.
type Datagrams struct {
	// Port is the UDP port of the tunnels.
	Port uint16
	// Sources are the addresses of believed nodes; nil is any.
	Sources []netip.Addr
	// Add accepts Sources in addition to those in force; if any source is accepted now, that stays.
	Add bool
	// Bind makes this node's tunnel datagrams leave from an address in Settings.NodeAddrs: any
	// other source is replaced by the preferred one of Settings.SelfAddrs.
	Bind bool
}

func (d *Datagrams) validate() error {
	if d == nil {
		return nil
	}
	var errs []error
	if d.Port == 0 && d.Sources != nil {
		errs = append(errs, errors.New("sources of tunnel datagrams without a port"))
	}
	for _, a := range d.Sources {
		if !plain(a) {
			errs = append(errs, fmt.Errorf("source of tunnel datagrams %s: not a plain address", a))
		}
	}
	return errors.Join(errs...)
}

// datagramSets are the sets that Datagrams fills.
var datagramSets = []string{setEndpoints4, setEndpoints6, setOuter4, setOuter6, setTunnelPort}

// datagrams plans the sets.
func (t table) datagrams(d *Datagrams, self []netip.Addr) {
	if d == nil {
		return
	}
	if d.Sources != nil {
		t.put(distinct(d.Sources), setEndpoints4, setEndpoints6)
		t.sets[setTunnelPort] = []element{{port: d.Port}}
	}
	if d.Bind {
		t.put(sourceAddrs(self), setOuter4, setOuter6)
	}
}

// keepDatagrams keeps the elements in force that d does not determine.
func (t table) keepDatagrams(have table, d *Datagrams) {
	switch {
	case d == nil:
		t.keep(have, datagramSets...)
	case d.Add:
		t.keep(have, setTunnelPort)
		for _, name := range []string{setEndpoints4, setEndpoints6} {
			if len(have.sets[setTunnelPort]) == 0 {
				t.sets[name] = nil
			}
			t.sets[name] = append(t.sets[name], minus(have.sets[name], t.sets[name])...)
		}
		t.sort()
	}
}

// takeDatagrams is the chain that judges datagrams that arrive for tunnels.
func takeDatagrams() chain {
	rules := []rule{
		{"meta l4proto != udp return", []expr.Any{
			&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1},
			&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: []byte{unix.IPPROTO_UDP}},
			&expr.Verdict{Kind: expr.VerdictReturn},
		}},
		{fmt.Sprintf("udp dport not @%s return", setTunnelPort), []expr.Any{
			&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 2,
				Len: 2},
			&expr.Lookup{SourceRegister: 1, SetName: setTunnelPort, Invert: true},
			&expr.Verdict{Kind: expr.VerdictReturn},
		}},
	}
	for _, f := range families {
		believed := &match{fmt.Sprintf("%s @%s", f.saddr, f.endpoints),
			append(load(f.saddr), &expr.Lookup{SourceRegister: 1, SetName: f.endpoints})}
		rules = append(rules, ruleOf(believed, expr.VerdictReturn, ""))
	}
	rules = append(rules, rule{fmt.Sprintf("counter %s drop", TunnelUnknownSource), []expr.Any{
		&expr.Objref{Type: unix.NFT_OBJECT_COUNTER, Name: TunnelUnknownSource},
		&expr.Verdict{Kind: expr.VerdictDrop},
	}})
	return chain{"take_datagrams", nftables.ChainTypeFilter, nftables.ChainHookInput,
		nftables.ChainPriorityFilter, rules}
}

// bindDatagrams is the chain that replaces sources of datagrams that tunnels send.
func bindDatagrams() chain {
	var rules []rule
	for _, f := range families {
		outer := encrypted()
		exprs := append(outer.exprs, load(f.saddr)...)
		exprs = append(exprs,
			&expr.Lookup{SourceRegister: 1, SetName: f.nodes, Invert: true},
			&expr.Immediate{Register: 1, Data: binaryutil.NativeEndian.PutUint32(
				abi.TunnelGroup)},
			&expr.Lookup{SourceRegister: 1, DestRegister: 1, IsDestRegSet: true, SetName: f.outer},
			f.writeSource())
		text := fmt.Sprintf("%s %s not @%s %s set @%s", outer.text, f.saddr, f.nodes, f.saddr,
			f.outer)
		rules = append(rules, rule{text, exprs})
	}
	return chain{"bind_datagrams", nftables.ChainTypeFilter, nftables.ChainHookOutput,
		nftables.ChainPriorityRaw, rules}
}

// headerChecksum4 is the offset of the checksum in an IPv4 header (RFC 791).
const headerChecksum4 = 10

// writeSource writes register 1 to the source address and corrects the checksums. The library can
// only pass the transport header's checksum together with one of the network header, which IPv6
// lacks. The source address stands in for it: nft_payload_set_eval (net/netfilter/nft_payload.c)
// writes the address after the checksum.
func (f family) writeSource() expr.Any {
	at := fields[f.saddr]
	checksum := at.offset
	if at.proto == unix.NFPROTO_IPV4 {
		checksum = headerChecksum4
	}
	return &expr.Payload{
		OperationType: expr.PayloadWrite, SourceRegister: 1,
		Base: expr.PayloadBaseNetworkHeader, Offset: at.offset, Len: at.len,
		CsumType: expr.CsumTypeInet, CsumOffset: checksum,
		CsumFlags: unix.NFT_PAYLOAD_L4CSUM_PSEUDOHDR,
	}
}

// portKey is a port in the encoding of an nftables set.
func portKey(port uint16) []byte { return binary.BigEndian.AppendUint16(nil, port) }
