package watch

import (
	"encoding/binary"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/hostnet/rtnetlink"
)

// nfgenmsgBytes is the size of struct nfgenmsg (include/uapi/linux/netfilter/nfnetlink.h).
const nfgenmsgBytes = 4

// linkNameBytes is IFNAMSIZ (include/uapi/linux/if.h).
const linkNameBytes = 16

// changeOfNFT returns the Change in a datagram about nftables: changes of our tables, and whether
// rules of other programs changed. It ignores new elements in our sets: veild adds those of the
// guard, and the CNI plugin those of pods. An element that another program adds is found at the
// next comparison with the kernel.
func changeOfNFT(b []byte) (c Change) {
	for kind, body := range rtnetlink.Messages(b) {
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
	case unix.NFPROTO_INET, unix.NFPROTO_IPV4, unix.NFPROTO_IPV6, unix.NFPROTO_NETDEV:
	default:
		return false
	}
	switch kind {
	case unix.NFT_MSG_NEWTABLE, unix.NFT_MSG_DELTABLE, unix.NFT_MSG_NEWCHAIN,
		unix.NFT_MSG_DELCHAIN, unix.NFT_MSG_NEWRULE, unix.NFT_MSG_DELRULE:
	default:
		return false
	}
	table := rtnetlink.Text(rtnetlink.Attribute(attrs, unix.NFTA_TABLE_NAME))
	return !strings.HasPrefix(table, abi.NFTPrefix)
}

// changeOfTable returns the Change in a message. In all messages about tables the first attribute
// is the name of the table (NFTA_TABLE_NAME, NFTA_CHAIN_TABLE, NFTA_SET_ELEM_LIST_TABLE and so on).
func changeOfTable(kind uint16, attrs []byte) (c Change) {
	switch table := rtnetlink.Text(rtnetlink.Attribute(attrs, unix.NFTA_TABLE_NAME)); {
	case table == abi.NFTNatTable || table == abi.NFTOuterTable:
		return Change{Routing: true}
	case table == abi.NFTFlowTableTCP || table == abi.NFTFlowTableUDP:
		// A new flow table, or a link that joined one, is a change by this process.
		return Change{PodLinks: kind != unix.NFT_MSG_NEWFLOWTABLE}
	case table == abi.NFTGuardTable:
		return Change{Guard: kind != unix.NFT_MSG_NEWSETELEM}
	case table == abi.NFTPodTable && kind == unix.NFT_MSG_DELSETELEM:
		elements := rtnetlink.Attribute(attrs, unix.NFTA_SET_ELEM_LIST_ELEMENTS)
		for _, element := range rtnetlink.Attributes(elements) {
			key := rtnetlink.Attribute(element, unix.NFTA_SET_ELEM_KEY)
			key = rtnetlink.Attribute(key, unix.NFTA_DATA_VALUE)
			if len(key) < linkNameBytes {
				return Change{AllPods: true}
			}
			c.Pods = append(c.Pods, rtnetlink.Text(key[:linkNameBytes]))
		}
		c.AllPods = len(c.Pods) == 0
	case table == abi.NFTPolicyTable:
		// Policies change elements, chains and most rules. veild never deletes a rule of the chains
		// at hooks: if one is deleted, another program did it.
		gone := kind == unix.NFT_MSG_DELTABLE || turnsOff(kind, attrs)
		chain := rtnetlink.Text(rtnetlink.Attribute(attrs, unix.NFTA_RULE_CHAIN))
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

// turnsOff reports whether a message makes a table dormant, so that packets do not traverse its
// chains.
func turnsOff(kind uint16, attrs []byte) bool {
	const dormant = 1 // NFT_TABLE_F_DORMANT
	flags := rtnetlink.Attribute(attrs, unix.NFTA_TABLE_FLAGS)
	return kind == unix.NFT_MSG_NEWTABLE && len(flags) == 4 &&
		binary.BigEndian.Uint32(flags)&dormant != 0
}
