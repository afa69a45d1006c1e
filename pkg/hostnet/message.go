package hostnet

import (
	"bytes"
	"encoding/binary"
	"iter"
	"net/netip"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/pkg/abi"
)

// netlinkMessages returns the messages of a datagram: kind and body. At a message that cannot be
// read, the kind is 0 and the iteration ends.
func netlinkMessages(b []byte) iter.Seq2[uint16, []byte] {
	return func(yield func(uint16, []byte) bool) {
		for len(b) >= unix.SizeofNlMsghdr {
			size := int(binary.NativeEndian.Uint32(b))
			if size < unix.SizeofNlMsghdr || size > len(b) {
				yield(0, nil)
				return
			}
			if !yield(binary.NativeEndian.Uint16(b[4:]), b[unix.SizeofNlMsghdr:size]) {
				return
			}
			b = b[min(len(b), align(size)):]
		}
	}
}

func align(n int) int { return (n + unix.NLMSG_ALIGNTO - 1) &^ (unix.NLMSG_ALIGNTO - 1) }

// attributeType is NLA_TYPE_MASK (include/uapi/linux/netlink.h).
const attributeType = 1<<14 - 1

// attributes returns the attributes of a message or of a nested attribute, without flags of their
// types. It ends at the first attribute that cannot be read.
func attributes(b []byte) iter.Seq2[uint16, []byte] {
	return func(yield func(uint16, []byte) bool) {
		for len(b) >= unix.SizeofNlAttr {
			size := int(binary.NativeEndian.Uint16(b))
			if size < unix.SizeofNlAttr || size > len(b) {
				return
			}
			kind := binary.NativeEndian.Uint16(b[2:]) & attributeType
			if !yield(kind, b[unix.SizeofNlAttr:size]) {
				return
			}
			b = b[min(len(b), align(size)):]
		}
	}
}

// attribute returns the first attribute of a kind, or nil when there is none.
func attribute(b []byte, kind uint16) []byte {
	for k, v := range attributes(b) {
		if k == kind {
			return v
		}
	}
	return nil
}

// number returns a number of four bytes in the host's order, or 0 if b is shorter.
func number(b []byte) int {
	if len(b) < 4 {
		return 0
	}
	return int(binary.NativeEndian.Uint32(b))
}

// text returns b up to its zero.
func text(b []byte) string {
	s, _, _ := bytes.Cut(b, []byte{0})
	return string(s)
}

// oddDevice is the device of a route that Route cannot represent. No wanted route has such a
// device.
const oddDevice = "#"

// nexthopID is RTA_NH_ID (include/uapi/linux/rtnetlink.h).
const nexthopID = 30

// routeOf reads the body of RTM_NEWROUTE. index is the index of the device; ok is false when the
// body cannot be read.
func routeOf(body []byte,
	nameOf func(index int) string) (r Route, index int, proto, kind byte, ok bool) {
	if len(body) < unix.SizeofRtMsg {
		return Route{}, 0, 0, 0, false
	}

	family, bits := body[0], int(body[1])
	proto, kind = body[5], body[7]
	r.Table = int(body[4])
	addr, size := netip.IPv4Unspecified(), 4
	if family == unix.AF_INET6 {
		addr, size = netip.IPv6Unspecified(), 16
	}

	plain := kind == unix.RTN_UNICAST
	for k, v := range attributes(body[unix.SizeofRtMsg:]) {
		switch k {
		case unix.RTA_DST:
			if len(v) != size {
				return Route{}, 0, 0, 0, false
			}
			addr, _ = netip.AddrFromSlice(v)
		case unix.RTA_TABLE:
			r.Table = number(v)
		case unix.RTA_OIF:
			index = number(v)
		case unix.RTA_PRIORITY:
			r.Metric = number(v)
		case unix.RTA_PREFSRC:
			src, _ := netip.AddrFromSlice(v)
			r.Source = src.Unmap()
		case unix.RTA_METRICS:
			r.MTU = number(attribute(v, unix.RTAX_MTU))
		case unix.RTA_GATEWAY, unix.RTA_MULTIPATH, unix.RTA_VIA, nexthopID:
			plain = false
		}
	}

	r.Dst = netip.PrefixFrom(addr, bits)
	switch {
	case kind == unix.RTN_UNREACHABLE:
	case plain:
		r.Device = nameOf(index)
	default:
		r.Device = oddDevice
	}

	return r, index, proto, kind, r.Dst.IsValid()
}

// nfgenmsgBytes is the size of struct nfgenmsg (include/uapi/linux/netfilter/nfnetlink.h).
const nfgenmsgBytes = 4

// linkNameBytes is IFNAMSIZ (include/uapi/linux/if.h).
const linkNameBytes = 16

// changeOfNFT returns the Change in a datagram about nftables tables: our tables, and whether rules
// of other programs changed. New elements in the guard's sets only drop more, and elements of pods
// belong to the plugin: neither needs a turn.
func changeOfNFT(b []byte) (c Change) {
	for kind, body := range netlinkMessages(b) {
		if kind == 0 {
			return All()
		}
		if kind>>8 != unix.NFNL_SUBSYS_NFTABLES || len(body) < nfgenmsgBytes {
			continue
		}
		if kind, attrs := kind&0xff, body[nfgenmsgBytes:]; isOthersFilter(body[0], kind, attrs) {
			c.Filters = true
		} else if body[0] == unix.NFPROTO_INET {
			c.Add(changeOfTable(kind, attrs))
		}
	}
	return c
}

// isOthersFilter reports whether a message shows that another program changed tables, chains or
// rules that may see packets of pods.
func isOthersFilter(family byte, kind uint16, attrs []byte) bool {
	switch family {
	case unix.NFPROTO_INET, unix.NFPROTO_IPV4, unix.NFPROTO_IPV6:
	default:
		return false
	}
	switch kind {
	case unix.NFT_MSG_NEWTABLE, unix.NFT_MSG_DELTABLE, unix.NFT_MSG_NEWCHAIN,
		unix.NFT_MSG_DELCHAIN, unix.NFT_MSG_NEWRULE, unix.NFT_MSG_DELRULE:
	default:
		return false
	}
	table := text(attribute(attrs, unix.NFTA_TABLE_NAME))
	return !strings.HasPrefix(table, abi.NFTPrefix)
}

// changeOfTable returns the Change in a message. In all messages about tables the first attribute
// is the table's name (NFTA_TABLE_NAME, NFTA_CHAIN_TABLE, NFTA_SET_ELEM_LIST_TABLE and so on).
func changeOfTable(kind uint16, attrs []byte) (c Change) {
	switch table := text(attribute(attrs, unix.NFTA_TABLE_NAME)); {
	case table == abi.NFTNatTable || table == abi.NFTOuterTable:
		return Change{Routing: true}
	case slices.Contains(flowTableNames, table):
		// A new flow table, or a link that joined one, is ours.
		return Change{PodLinks: kind != unix.NFT_MSG_NEWFLOWTABLE}
	case table == abi.NFTGuardTable:
		return Change{Guard: kind != unix.NFT_MSG_NEWSETELEM}
	case table == abi.NFTPodTable && kind == unix.NFT_MSG_DELSETELEM:
		for _, element := range attributes(attribute(attrs, unix.NFTA_SET_ELEM_LIST_ELEMENTS)) {
			key := attribute(attribute(element, unix.NFTA_SET_ELEM_KEY), unix.NFTA_DATA_VALUE)
			if len(key) < linkNameBytes {
				return Change{AllPods: true}
			}
			c.Pods = append(c.Pods, text(key[:linkNameBytes]))
		}
		c.AllPods = len(c.Pods) == 0
	case table == abi.NFTPolicyTable:
		// Elements, chains and rules change with each policy, but not the rules at hooks: a table
		// that another program flushes loses them.
		gone := kind == unix.NFT_MSG_DELTABLE || turnsOff(kind, attrs)
		chain := text(attribute(attrs, unix.NFTA_RULE_CHAIN))
		return Change{Policy: gone || kind == unix.NFT_MSG_DELRULE &&
			(chain == abi.NFTPolicyPost || chain == abi.NFTPolicyHost)}
	case table == abi.NFTStampTable:
		return Change{Policy: kind == unix.NFT_MSG_DELTABLE || kind == unix.NFT_MSG_DELRULE ||
			turnsOff(kind, attrs)}
	case table == abi.NFTPodTable:
		return Change{Guard: kind != unix.NFT_MSG_NEWSETELEM,
			AllPods: kind != unix.NFT_MSG_NEWSETELEM}
	}
	return c
}

// turnsOff reports whether a message makes a table dormant: its chains then see no packet.
func turnsOff(kind uint16, attrs []byte) bool {
	const dormant = 1 // NFT_TABLE_F_DORMANT
	flags := attribute(attrs, unix.NFTA_TABLE_FLAGS)
	return kind == unix.NFT_MSG_NEWTABLE && len(flags) == 4 &&
		binary.BigEndian.Uint32(flags)&dormant != 0
}
