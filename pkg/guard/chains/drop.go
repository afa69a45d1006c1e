package chains

import (
	"slices"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/nft"
	"github.com/kubeveil/kubeveil/pkg/abi"
)

// Each reason has a chain in which packets end. It counts all of them and sends the headers of some
// to nflog:
//
//	a rule that drops ─► drop_REASON: count ─► share of the link? ─► limit of the reason? ─► nflog
//	                                  └─► drop
//
// A packet that is not dropped passes no additional rule. The share is per input link. So a pod
// whose packets are often dropped does not hide others, regardless of the addresses that it forges.

// Prefixes of the names of those chains, and of the sets of shares.
const dropPrefix, countPrefix, sharePrefix = "drop_", "count_", "share_"

// Bounds of samples. A full bucket that is refilled allows twice its rate within a second, so at
// most 100 packets of a reason are sampled in any second. BPF programs may sample as many more for
// the same reason.
const (
	sampleRate, sampleBurst = 50, 50 // per second of a reason
	shareRate, shareBurst   = 2, 10  // per second of a reason and a link
	shareFor                = 10 * time.Second
	shareRoom               = 1 << 12 // links
)

// SampleBytes is the number of bytes of a sampled packet that are sent. Two IPv6 headers with
// options, and ports, fit in.
const SampleBytes = 128

// Drop drops packets for a reason of AddDrops.
func Drop(reason string) nft.Rule { return nft.Goto(dropPrefix + reason) }

// AddDrops adds the chains in which packets end to a table, their counters, and their sets of
// shares.
func AddDrops(t *nft.Table, reasons ...string) {
	t.Counters = append(slices.Clone(t.Counters), reasons...)
	for _, r := range reasons {
		t.Sets = append(t.Sets, nft.Set{Shared: true, Set: nftables.Set{Name: sharePrefix + r,
			KeyType: nftables.TypeIFIndex, KeyByteOrder: binaryutil.NativeEndian, Dynamic: true,
			HasTimeout: true, Timeout: shareFor, Size: shareRoom}})
		count, last := []nft.Rule{nft.Count(r), sample(r)}, nft.Drop
		switch r {
		case Midstream, SiteNotExported: // Such a packet is dropped, or answered with a reset.
			t.Chains = append(t.Chains, nft.Target(countPrefix+r, count...))
			count = []nft.Rule{nft.Jump(countPrefix + r)}
		case NoRoute:
			last = nft.Reset
		}
		t.Chains = append(t.Chains, nft.Target(dropPrefix+r, append(count, last)...))
	}
}

// sample sends packets to nflog, within the share of their link and the limit of the reason.
func sample(reason string) nft.Rule {
	limit := func(rate uint64, burst uint32) expr.Any {
		return &expr.Limit{Type: expr.LimitTypePkts, Rate: rate, Unit: expr.LimitTimeSecond,
			Burst: burst}
	}
	return nft.Rule{
		&expr.Meta{Key: expr.MetaKeyIIF, Register: unix.NFT_REG_1},
		&expr.Dynset{SrcRegKey: unix.NFT_REG_1, SetName: sharePrefix + reason,
			Operation: unix.NFT_DYNSET_OP_UPDATE,
			Exprs:     []expr.Any{limit(shareRate, shareBurst)}},
		limit(sampleRate, sampleBurst),
		&expr.Log{Key: 1<<unix.NFTA_LOG_GROUP | 1<<unix.NFTA_LOG_PREFIX | 1<<unix.NFTA_LOG_SNAPLEN,
			Group: abi.NFLogGuard, Snaplen: SampleBytes, Data: []byte(reason)},
	}
}

// isSample reports whether a rule is one of sample.
func isSample(rule nft.Rule) bool {
	return slices.ContainsFunc(rule, func(e expr.Any) bool { _, ok := e.(*expr.Log); return ok })
}

// Unsampled removes from a planned table the rules and sets that sample drops. Drops are still
// counted.
func Unsampled(t *nft.Table) {
	t.Sets = slices.DeleteFunc(t.Sets, func(s nft.Set) bool { return s.Dynamic })
	for i := range t.Chains {
		t.Chains[i].Rules = slices.DeleteFunc(t.Chains[i].Rules, isSample)
	}
}

// SampleProbe returns a table with all rules and sets that sample a drop, to try whether the kernel
// supports them.
func SampleProbe() *nft.Table {
	t := &nft.Table{Name: abi.NFTPrefix + "_sample"}
	AddDrops(t, Spoofed)
	t.Chains[0].Rules = []nft.Rule{sample(Spoofed)} // Without the counter, which Try does not make.
	return t
}

// Names of the reasons that the nftables tables count, in bpf/reasons.go.
const (
	SrcInRange      = "src_in_range"
	DstInRange      = "dst_in_range"
	PodToRange      = "pod_to_range"
	PodToNode       = "pod_to_node"
	Spoofed         = "pod_spoofed_source"
	QuotedInError   = "quoted_in_error"
	Translated      = "source_translated"
	Unmarked        = "pod_unmarked"
	Untranslated    = "pod_to_vip"
	Midstream       = "pod_midstream"
	NoRoute         = "pod_no_route"
	TunnelToOutside = "tunnel_to_outside"
	ToLoopback      = "to_loopback"
	PodLinkLocal    = "pod_link_local"
	SiteNotExported = "site_not_exported"

	// TunnelUnknownSource counts tunnel datagrams from an address that no known node has: received
	// datagrams, and datagrams that this node would have sent.
	TunnelUnknownSource = "tunnel_unknown_source"
)
