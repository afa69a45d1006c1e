package hostnet

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/nft"
	"github.com/kubeveil/kubeveil/internal/nl"
	"github.com/kubeveil/kubeveil/pkg/abi"
)

// A flow between a pod's link and a tunnel that has passed all rules is put into a flow table of
// the kernel (Documentation/networking/nf_flowtable.rst). Its packets go from the one link to the
// other then, past routing and the other hooks:
//
//	vpod… ─► flow table: known? ─► veil0 ═►
//	             └ no ─► prerouting, routing, forward: one packet in flowOdds adds its flow ─► postrouting ─► veil0 ═►
//
// The guard's checks per packet become checks per flow. An entry is the link by which the packet
// comes in, both addresses, both ports and the protocol. So the source is the one that was judged,
// from the link for which it was judged. The output is the route that was found, of a tunnel or of
// a pod. The slow path looks it up again once that route has changed (dst_check in
// nf_flow_table_ip.c). Fragments, IP options and packets larger than the route's MTU take the slow
// path.
//
// A flow whose source is translated stays on the slow path: the guard judges it behind the hook at
// which flows are added (source_translated). So does a flow without PodMark, because the tables
// that set it are missing. So does a flow of which only the replies are forwarded: IPVS takes its
// first packet at another hook, and its translation is not in the entry.
//
// TCP from pods takes the slow path. The pod's sender waits until its segments are freed (TCP small
// queues). The slow path frees them early (skb_orphan in ip_rcv_core), but the fast path only after
// encryption, so the pod would send in small pieces. Packets out of a tunnel take the fast path
// with both protocols.

// The content of an nftables table of flows. Each protocol has its own table, because a link joins
// only one flow table of a table.
const (
	flowtableName = "flows"
	flowChain     = "forward"
)

var flowTableNames = []string{abi.NFTFlowTableTCP, abi.NFTFlowTableUDP}

// afterAll runs after everything else at forward: a packet that others drop there adds no flow.
const afterAll = 300

// flowOdds: one packet in so many adds its flow. Most short connections, for which adding costs
// more than it saves, end before.
const flowOdds = 16

// sourceTranslated is IPS_SRC_NAT (include/uapi/linux/netfilter/nf_conntrack_common.h).
const sourceTranslated = 1 << 4

// maxFlowPods bounds the pod links that join. The kernel lists a flow table in one message of less
// than 4 KiB, 20 bytes a link, with at most 255 links (NFT_NETDEVICE_MAX). Packets of further pods
// take the slow path.
const maxFlowPods = 150

// errNoFlowtable matches a kernel without flow tables (CONFIG_NF_FLOW_TABLE_INET,
// CONFIG_NFT_FLOW_OFFLOAD, CONFIG_NFT_NUMGEN).
var errNoFlowtable = errors.New("the kernel has no flow tables, so packets take the slow path: " +
	"load nf_flow_table_inet, nft_flow_offload, nft_numgen")

// Join is a link whose packets use the flow table of an nftables table.
type Join struct {
	Table, Link string
	// MTU is the MTU of the link in bytes. For a joined link it is the MTU when it joined, because
	// entries store it.
	MTU int
}

func compareJoins(a, b Join) int {
	return cmp.Or(cmp.Compare(a.Table, b.Table), cmp.Compare(a.Link, b.Link))
}

// readFlows reads the nftables flow tables and the links into s.
func (h *Host) readFlows(s *State, links []nl.Link) error {
	tables, err := nft.ReadAll(flowTables(nil)...)
	if err != nil {
		return err
	}
	h.addFlows(s, links, tables)
	return nil
}

// addFlows adds to s the flow tables that were read and the links. A table that does not exist is
// nil.
func (h *Host) addFlows(s *State, links []nl.Link, tables []*nft.Table) {
	for _, t := range tables {
		if t == nil {
			continue
		}
		s.Flows += t.String()
		for _, link := range t.Devices {
			s.Joined = append(s.Joined, Join{Table: t.Name, Link: link})
		}
	}
	h.readJoins(s, links)
}

// readJoins reads into s the links that belong into the flow tables, and the joined ones with their
// MTU.
func (h *Host) readJoins(s *State, links []nl.Link) {
	mtus := map[string]int{}
	for _, j := range s.Joined {
		mtus[j.Link] = h.joinedMTU[j.Link]
	}

	var pods []Join
	for _, l := range links {
		a := l.Attrs()
		if mtu, ok := mtus[a.Name]; ok && mtu == 0 {
			mtus[a.Name] = a.MTU
		}
		switch a.Group {
		case abi.TunnelGroup:
			s.Joins = append(s.Joins, Join{abi.NFTFlowTableTCP, a.Name, a.MTU},
				Join{abi.NFTFlowTableUDP, a.Name, a.MTU})
		case abi.PodGroup:
			pods = append(pods, Join{abi.NFTFlowTableUDP, a.Name, a.MTU})
		}
	}

	for i, j := range s.Joined {
		s.Joined[i].MTU = mtus[j.Link]
	}

	h.joinedMTU = mtus
	// Joined links stay: none has to leave for a new one.
	slices.SortStableFunc(pods, func(a, b Join) int {
		_, has := mtus[a.Link]
		_, had := mtus[b.Link]
		return compareBool(had, has)
	})
	s.Joins = append(s.Joins, pods[:min(len(pods), maxFlowPods)]...)
}

// flowTables returns the nftables tables, one for each protocol, with flow tables for packets that
// come in by links.
func flowTables(joins []Join) []*nft.Table {
	tables := []*nft.Table{flowTable(abi.NFTFlowTableTCP, unix.IPPROTO_TCP),
		flowTable(abi.NFTFlowTableUDP, unix.IPPROTO_UDP)}
	for _, t := range tables {
		for _, j := range joins {
			if j.Table == t.Name {
				t.Devices = append(t.Devices, j.Link)
			}
		}
	}
	return tables
}

// plannedFlows returns the text of all.
func plannedFlows() (text string) {
	for _, t := range flowTables(nil) {
		text += t.String()
	}
	return text
}

// flowTable is the nft table for flows of a protocol, without links.
func flowTable(name string, proto byte) *nft.Table {
	skip := func(part nft.Rule) nft.Rule { return nft.All(part, nft.Return) }
	add := nft.Rule{&expr.FlowOffload{Name: flowtableName}}
	return &nft.Table{Name: name, Flowtable: flowtableName, Chains: []nft.Chain{
		nft.Base(flowChain, nftables.ChainTypeFilter, nftables.ChainHookForward, afterAll,
			skip(nft.Proto(nft.Neq, proto)),
			skip(nft.Rule{
				&expr.Numgen{Register: 1, Type: unix.NFT_NG_RANDOM, Modulus: flowOdds},
				&expr.Cmp{Op: nft.Neq, Register: 1, Data: nft.Native(0)},
			}),
			skip(nft.Mark(abi.PodMark, nft.Eq, 0)),
			skip(nft.Direction(nft.Neq, 0)), // IP_CT_DIR_ORIGINAL
			skip(nft.Status(sourceTranslated, nft.Neq)),
			nft.All(nft.InGroup(nft.Eq, abi.PodGroup), nft.OutGroup(nft.Eq, abi.TunnelGroup), add),
			nft.All(nft.InGroup(nft.Eq, abi.TunnelGroup), nft.OutGroup(nft.Eq, abi.PodGroup), add)),
	}}
}

// diffFlows returns the changes to the flow tables. They are replaced, which ends all entries, when
// a link has another MTU, because entries remember it, and when a link is gone: since Linux 6.16
// its name stays in the list.
func diffFlows(have, want State, devices []deviceOp) []Op {
	if want.Flows == "" {
		if have.Flows == "" {
			return nil
		}
		var ops []Op
		for _, t := range flowTables(nil) {
			ops = append(ops, tableOp{t, false})
		}
		return ops
	}
	anew := have.Flows != want.Flows || len(without(have.Joined, have.Joins)) > 0
	for _, d := range devices {
		anew = anew || d.have.MTU != d.want.MTU
	}
	if anew {
		return []Op{flowsOp{have.Joins, true}}
	}
	if missing := without(have.Joins, have.Joined); len(missing) > 0 {
		return []Op{flowsOp{missing, false}}
	}
	return nil
}

// without returns the elements of a that are not in b.
func without(a, b []Join) []Join {
	return slices.DeleteFunc(slices.Clone(a), func(j Join) bool { return slices.Contains(b, j) })
}

// flowsOp makes the flow tables, or lets links join them.
type flowsOp struct {
	joins []Join
	anew  bool
}

func (o flowsOp) String() string {
	if o.anew {
		return fmt.Sprintf("replace nft tables %v", flowTableNames)
	}
	var links []string
	for _, j := range o.joins {
		links = append(links, j.Link)
	}
	return fmt.Sprintf("add links %v to the flow tables", slices.Compact(links))
}

func (o flowsOp) phase() phase { return phaseTable }

// apply never fails: without flow tables packets are slower and nothing is wrong. FlowtableProblem
// reports what happened.
func (o flowsOp) apply(h *Host) error {
	h.flowsErr = nil
	for _, t := range flowTables(o.joins) {
		if !o.anew {
			h.flowsErr = errors.Join(h.flowsErr, join(t))
			continue
		}
		h.joinedMTU = nil
		err := t.Replace()
		if noFlowtable(err) {
			// Either the kernel has no flow tables, or one of the links is gone.
			links := t.Devices
			t.Devices = nil
			if err = t.Replace(); noFlowtable(err) {
				h.noFlows = errNoFlowtable
				return nil
			}
			if t.Devices = links; err == nil {
				err = join(t)
			}
		}
		h.flowsErr = errors.Join(h.flowsErr, err)
	}
	return nil
}

// join joins the links of t. It ignores a link or table that is gone: package watch notifies, and
// the next reading finds what is missing.
func join(t *nft.Table) error {
	if len(t.Devices) == 0 {
		return nil
	}
	if err := t.Join(); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("add links %v to the flow table: %w", t.Devices, err)
	}
	return nil
}

func noFlowtable(err error) bool {
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EOPNOTSUPP)
}

// FlowtableProblem returns why packets of known flows do not all take the fast path although it is
// wanted, or nil if they do.
func (h *Host) FlowtableProblem() error {
	if h.noFlows != nil {
		return h.noFlows
	}
	return h.flowsErr
}

// StopFlows sends every packet by the slow path, until the next Sync that enables flows.
func (h *Host) StopFlows() error {
	h.Forget()
	var errs []error
	for _, name := range flowTableNames {
		_, err := nft.Delete(name)
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}
