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

// WireGuard sends to where the last authentic datagram came from. So a host that relays datagrams
// for two seconds, without any key, becomes the endpoint of both nodes and stays it:
//
//	node-1 ─► held back ┐                     ┌ held back ◄─ node-2
//	                    └─► relay ─► node-2: answers to the relay from now on
//
// Tunnel datagrams are therefore taken only from addresses of believed nodes, at the hook input.
//
// A node has to send from such an address. Its kernel chooses the source as for anything else
// (inet_select_addr, RFC 6724), so on a node with one address more the choice may be one that no
// Node has. At the hook output, before connection tracking, any such source is replaced by the
// preferred one. This is a change of the header and no NAT: the peer answers to the new source,
// which WireGuard sends from after that by itself.

// TunnelUnknownSource is the reason of bpf/reasons.go.
const TunnelUnknownSource = "tunnel_unknown_source"

// Datagrams says from where tunnel datagrams are taken. The zero value takes them from anywhere.
type Datagrams struct {
	// Port is the UDP port on which tunnels listen.
	Port uint16
	// Sources are the addresses of believed nodes; nil is any.
	Sources []netip.Addr
	// Add takes datagrams from Sources and from what is in force; where any is in force, any stays.
	Add bool
	// Bind makes this node's own datagrams leave from an address in Settings.NodeAddrs: the source
	// of any other becomes the preferred one of Settings.SelfAddrs.
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

// keepDatagrams keeps of what is in force what d does not say.
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

// takeDatagrams is the chain that judges what arrives for tunnels.
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

// bindDatagrams is the chain that replaces sources of what tunnels send.
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

// headerChecksum4 is where an IPv4 header has its checksum (RFC 791).
const headerChecksum4 = 10

// writeSource writes register 1 to the source address and corrects the checksums. The library tells
// the kernel of the transport header's only together with one of the network header, which IPv6
// does not have. The source address stands for it: nft_payload_set_eval
// (net/netfilter/nft_payload.c) writes the address after the checksum.
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

// portKey is a port as nftables has it in a set.
func portKey(port uint16) []byte { return binary.BigEndian.AppendUint16(nil, port) }
