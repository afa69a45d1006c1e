package flowtable

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

// A flow between a pod's link and a tunnel whose packets have passed all rules is added to a flow
// table of the kernel (Documentation/networking/nf_flowtable.rst). Its later packets go directly
// from one link to the other, without routing and the other hooks:
//
//	vpod… ─► flow table: known? ─► veil0 ═►
//	             └ no ─► prerouting, routing, forward: one packet in odds adds its flow
//	                       ─► postrouting ─► veil0 ═►
//
// So the guard checks flows once, instead of each packet. The key of an entry is the input link,
// both addresses, both ports and the protocol. So a packet matches only with the source and the
// link that the guard has checked. The output is the route that was found, to a tunnel or a pod.
// When that route changes, packets take the slow path, which looks it up again (dst_check in
// nf_flow_table_ip.c). Fragments, IP options and packets larger than the route's MTU also take the
// slow path.
//
// These flows stay on the slow path:
//   - A flow whose source is translated, because the guard checks it after the hook at which flows
//     are added (source_translated).
//   - A flow without PodMark, because the tables that set the mark are missing.
//   - A flow of which only the replies are forwarded. IPVS takes its first packet at another hook,
//     and the entry would lack the translation of IPVS.
//   - TCP from pods. TCP of the pod waits until its segments are freed (TCP small queues). The slow
//     path frees them early (skb_orphan in ip_rcv_core), but the fast path only after encryption,
//     so the pod would send in small pieces.
//
// Packets out of a tunnel take the fast path with both TCP and UDP.

// Names in an nftables table with a flow table. Each protocol has its own nftables table, because a
// link can join only one flow table of an nftables table.
const (
	setName = "flows"
	chain   = "forward"
)

// Names are the names of the nftables tables.
var Names = []string{abi.NFTFlowTableTCP, abi.NFTFlowTableUDP}

// afterAll is a priority after all other chains at forward, so that a packet which they drop adds
// no flow.
const afterAll = 300

// odds is the number of packets of which, on average, one adds its flow. Most short connections end
// before they are added. For these, adding would cost more than it saves.
const odds = 16

// sourceTranslated is IPS_SRC_NAT (include/uapi/linux/netfilter/nf_conntrack_common.h).
const sourceTranslated = 1 << 4

// MaxPods bounds the pod links that join the flow tables. The kernel lists a flow table in one
// message of less than 4 KiB, with 20 bytes per link, and with at most 255 links
// (NFT_NETDEVICE_MAX). Packets of further pods take the slow path.
const MaxPods = 150

// errNone is the problem of a kernel without flow tables (CONFIG_NF_FLOW_TABLE_INET,
// CONFIG_NFT_FLOW_OFFLOAD, CONFIG_NFT_NUMGEN).
var errNone = errors.New("the kernel has no flow tables, so packets take the slow path: " +
	"load nf_flow_table_inet, nft_flow_offload, nft_numgen")

// Join is a link whose packets use the flow table of an nftables table.
type Join struct {
	Table, Link string
	// MTU is the MTU of the link in bytes. For a joined link it is the MTU when it joined, because
	// entries store it.
	MTU int
}

// CompareJoins orders by table, then by link.
func CompareJoins(a, b Join) int {
	return cmp.Or(cmp.Compare(a.Table, b.Table), cmp.Compare(a.Link, b.Link))
}

// Tables returns the nftables tables, one per protocol, with the links of joins in their flow
// tables.
func Tables(joins []Join) []*nft.Table {
	tables := []*nft.Table{table(abi.NFTFlowTableTCP, unix.IPPROTO_TCP),
		table(abi.NFTFlowTableUDP, unix.IPPROTO_UDP)}
	for _, t := range tables {
		for _, j := range joins {
			if j.Table == t.Name {
				t.Devices = append(t.Devices, j.Link)
			}
		}
	}
	return tables
}

// Text returns the text of all tables, without links.
func Text() (text string) {
	for _, t := range Tables(nil) {
		text += t.String()
	}
	return text
}

// table returns the nftables table for flows of a protocol, without links.
func table(name string, proto byte) *nft.Table {
	skip := func(part nft.Rule) nft.Rule { return nft.All(part, nft.Return) }
	add := nft.Rule{&expr.FlowOffload{Name: setName}}
	return &nft.Table{Name: name, Flowtable: setName, Chains: []nft.Chain{
		nft.Base(chain, nftables.ChainTypeFilter, nftables.ChainHookForward, afterAll,
			skip(nft.Proto(nft.Neq, proto)),
			skip(nft.Rule{
				&expr.Numgen{Register: 1, Type: unix.NFT_NG_RANDOM, Modulus: odds},
				&expr.Cmp{Op: nft.Neq, Register: 1, Data: nft.Native(0)},
			}),
			skip(nft.Mark(abi.PodMark, nft.Eq, 0)),
			skip(nft.Direction(nft.Neq, 0)), // IP_CT_DIR_ORIGINAL
			skip(nft.Status(sourceTranslated, nft.Neq)),
			nft.All(nft.InGroup(nft.Eq, abi.PodGroup), nft.OutGroup(nft.Eq, abi.TunnelGroup), add),
			nft.All(nft.InGroup(nft.Eq, abi.TunnelGroup), nft.OutGroup(nft.Eq, abi.PodGroup), add)),
	}}
}

// Without returns the elements of a that are not in b.
func Without(a, b []Join) []Join {
	return slices.DeleteFunc(slices.Clone(a), func(j Join) bool { return slices.Contains(b, j) })
}

// join adds the links of t to its flow table. It ignores a link or table that is gone, because
// package watch reports that, and the next Read finds what is missing.
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

// Flows are the flow tables of one network namespace. It is not safe for concurrent use.
type Flows struct {
	// none is the reason why the kernel's flow tables are not used. err is the reason why they
	// differ from the plan. Nil means no problem.
	none, err error
	// joinedMTU holds the MTUs that links had when they joined a flow table, by name.
	joinedMTU map[string]int
}

// New returns Flows. problem is the reason why the kernel has no flow tables, or nil if it has
// them.
func New(problem error) *Flows { return &Flows{none: problem} }

// None returns the reason why the kernel's flow tables are not used, or nil if they are used.
func (f *Flows) None() error { return f.none }

// Problem returns the reason why some or all packets of known flows do not take the fast path
// although it is wanted, or nil if there is no problem.
func (f *Flows) Problem() error {
	if f.none != nil {
		return f.none
	}
	return f.err
}

// Read returns the text of tables, the links that belong to the flow tables, and the links that
// have joined. tables are the tables in the kernel; nil stands for a missing table.
func (f *Flows) Read(links []nl.Link, tables []*nft.Table) (text string, joins, joined []Join) {
	for _, t := range tables {
		if t == nil {
			continue
		}
		text += t.String()
		for _, link := range t.Devices {
			joined = append(joined, Join{Table: t.Name, Link: link})
		}
	}

	mtus := map[string]int{}
	for _, j := range joined {
		mtus[j.Link] = f.joinedMTU[j.Link]
	}

	var pods []Join
	for _, l := range links {
		a := l.Attrs()
		if mtu, ok := mtus[a.Name]; ok && mtu == 0 {
			mtus[a.Name] = a.MTU
		}
		switch a.Group {
		case abi.TunnelGroup:
			joins = append(joins, Join{abi.NFTFlowTableTCP, a.Name, a.MTU},
				Join{abi.NFTFlowTableUDP, a.Name, a.MTU})
		case abi.PodGroup:
			pods = append(pods, Join{abi.NFTFlowTableUDP, a.Name, a.MTU})
		}
	}

	for i, j := range joined {
		joined[i].MTU = mtus[j.Link]
	}

	f.joinedMTU = mtus
	// Sort joined links first, so that beyond MaxPods no joined link is replaced by a new one.
	slices.SortStableFunc(pods, func(a, b Join) int {
		_, has := mtus[a.Link]
		_, had := mtus[b.Link]
		switch {
		case had == has:
			return 0
		case has:
			return -1
		}
		return 1
	})
	return text, append(joins, pods[:min(len(pods), MaxPods)]...), joined
}

// Make replaces the tables, or only adds links to them. It returns no error,
// because packets also flow without flow tables, only slower. Problem reports a failure.
func (f *Flows) Make(joins []Join, anew bool) {
	f.err = nil
	for _, t := range Tables(joins) {
		if !anew {
			f.err = errors.Join(f.err, join(t))
			continue
		}
		f.joinedMTU = nil
		err := t.Replace()
		if noFlowtable(err) {
			// Either the kernel has no flow tables, or one of the links is gone.
			links := t.Devices
			t.Devices = nil
			if err = t.Replace(); noFlowtable(err) {
				f.none = errNone
				return
			}
			if t.Devices = links; err == nil {
				err = join(t)
			}
		}
		f.err = errors.Join(f.err, err)
	}
}

// Stop deletes the tables.
func Stop() error {
	var errs []error
	for _, name := range Names {
		_, err := nft.Delete(name)
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}
