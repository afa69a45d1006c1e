package hostnet

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/pkg/config"
	"github.com/kubeveil/kubeveil/pkg/internal/nl"
)

// A flow between a pod's link and a tunnel that has passed all rules is put into a flow table of the kernel
// (Documentation/networking/nf_flowtable.rst). Its packets go from the one link to the other then, past routing and
// the other hooks:
//
//	vpod… ─► flow table: known? ─► veil0 ═►
//	             └ no ─► prerouting, routing, forward: one packet in flowOdds adds its flow ─► postrouting ─► veil0 ═►
//
// What the guard holds packet by packet, the table holds flow by flow. An entry is the link by which the packet comes in, both
// addresses, both ports and the protocol: so the source is the one that was judged, from the link it was judged for. The way out is
// the route that was found, a tunnel's or a pod's; it is asked anew, by the whole way, once any route, rule or link has changed since (dst_check
// in nf_flow_table_ip.c). Fragments, IP options, what is larger than the route's MTU, FIN and RST go the whole way.
//
// A flow whose source is translated stays on the whole way: the guard judges that behind the hook at which flows are added (source_translated).
// So does one without PodMark: the tables that set it are away.

// The flow table and its chain.
const (
	flowtableName = "flows"
	flowChain     = "forward"
)

// afterFilter is behind priority filter (0): a packet that others drop there adds nothing.
const afterFilter = 10

// flowOdds is one packet in how many adds its flow. Short connections, for which adding costs more than it saves, mostly end before it.
const flowOdds = 16

// sourceTranslated is IPS_SRC_NAT (include/uapi/linux/netfilter/nf_conntrack_common.h).
const sourceTranslated = 1 << 4

// errNoFlowtable is what a kernel without flow tables gives (CONFIG_NF_FLOW_TABLE_INET, CONFIG_NFT_FLOW_OFFLOAD).
var errNoFlowtable = errors.New("the kernel has no flow tables (modules nf_flow_table_inet and nft_flow_offload): each packet goes the whole way")

// flowTable is the table, for packets that come in by links.
func flowTable(links []string) nftTable {
	group := func(key expr.MetaKey, group uint32) []expr.Any {
		return []expr.Any{
			&expr.Meta{Key: key, Register: 1},
			&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: binary.NativeEndian.AppendUint32(nil, group)},
		}
	}
	back := &expr.Verdict{Kind: expr.VerdictReturn}
	rules := [][]expr.Any{
		{
			&expr.Numgen{Register: 1, Type: unix.NFT_NG_RANDOM, Modulus: flowOdds},
			&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: make([]byte, 4)},
			back,
		},
		{
			&expr.Meta{Key: expr.MetaKeyMARK, Register: 1},
			bits(config.PodMark),
			&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: make([]byte, 4)},
			back,
		},
		{
			&expr.Ct{Key: expr.CtKeySTATUS, Register: 1},
			bits(sourceTranslated),
			&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: make([]byte, 4)},
			back,
		},
	}
	for _, g := range [][2]uint32{{config.PodGroup, config.TunnelGroup}, {config.TunnelGroup, config.PodGroup}} {
		for _, proto := range []byte{unix.IPPROTO_TCP, unix.IPPROTO_UDP} {
			rules = append(rules, slices.Concat(group(expr.MetaKeyIIFGROUP, g[0]), group(expr.MetaKeyOIFGROUP, g[1]), []expr.Any{
				&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1},
				&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{proto}},
				&expr.FlowOffload{Name: flowtableName},
			}))
		}
	}
	return nftTable{name: config.NFTFlowTable, flowtable: flowtableName, links: links, chains: []nftChain{{
		Chain: nftables.Chain{
			Name: flowChain, Type: nftables.ChainTypeFilter,
			Hooknum: nftables.ChainHookForward, Priority: nftables.ChainPriorityRef(afterFilter),
		},
		rules: rules,
	}}}
}

// bits keeps those of register 1.
func bits(mask uint32) *expr.Bitwise {
	return &expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: binary.NativeEndian.AppendUint32(nil, mask), Xor: make([]byte, 4)}
}

// flows is the flow table of t.
func (t nftTable) flows() *nftables.Flowtable {
	return &nftables.Flowtable{Table: t.kernel(), Name: t.flowtable, Devices: t.links}
}

// joins is whether packets that come in by a link may take the short way.
func joins(a *nl.LinkAttrs) bool { return a.Group == config.PodGroup || a.Group == config.TunnelGroup }

// diffFlows gives what must be done for the flow table. A new MTU of a tunnel ends all entries, which remember that of their route.
func diffFlows(have, want State, devices []deviceOp) []Op {
	if len(want.Flows) == 0 {
		if len(have.Flows) == 0 {
			return nil
		}
		return []Op{tableOp{flowTable(nil), false}}
	}
	anew := !slices.Equal(have.Flows, want.Flows) || len(without(have.Joined, have.FlowLinks)) > 0
	for _, d := range devices {
		anew = anew || d.have.MTU != d.want.MTU
	}
	if anew {
		return []Op{flowsOp{have.FlowLinks, true}}
	}
	if missing := without(have.FlowLinks, have.Joined); len(missing) > 0 {
		return []Op{flowsOp{missing, false}}
	}
	return nil
}

// without gives what is in a and not in b.
func without(a, b []string) []string {
	return slices.DeleteFunc(slices.Clone(a), func(s string) bool { return slices.Contains(b, s) })
}

// flowsOp makes the table, or lets links join it. The kernel takes links away by itself when they go.
type flowsOp struct {
	links []string
	anew  bool
}

func (o flowsOp) String() string {
	if o.anew {
		return "replace nft table " + config.NFTFlowTable
	}
	return fmt.Sprintf("add links %v to the flow table", o.links)
}

func (o flowsOp) phase() phase { return phaseTable }

// apply takes it for granted that a link is there when the kernel says that one is not: Watch tells of those that went.
func (o flowsOp) apply(*Host) error {
	t := flowTable(o.links)
	if !o.anew {
		return gone(t.join())
	}
	err := t.apply()
	if !noFlowtable(err) {
		return err
	}
	// Either has no flow tables, or one of the links is gone.
	t.links = nil
	if err := t.apply(); noFlowtable(err) {
		return errNoFlowtable
	} else if err != nil {
		return err
	}
	t.links = o.links
	return gone(t.join())
}

// join lets the links of t join the flow table that is there. One that has joined stays.
func (t nftTable) join() error {
	c, err := nftables.New()
	if err != nil {
		return err
	}
	c.AddFlowtable(t.flows())
	return c.Flush()
}

// gone leaves out the error that a link, or the table, is there no more.
func gone(err error) error {
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	return err
}

func noFlowtable(err error) bool {
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EOPNOTSUPP)
}
