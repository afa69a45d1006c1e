package conntrack

import (
	"errors"
	"io/fs"
	"net/netip"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"

	"github.com/kubeveil/kubeveil/internal/nft"
	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/guard/chains"
)

// DropReason names the drop reason of packets that would open a connection above the limit.
const DropReason = "pod_connections"

// priority lies between conntrack (-200) and destination NAT (-100). There, the packet still has
// the pod's address, and its connection has no confirmed entry yet.
const priority = -150

var sets = []struct {
	name, suffix string
	saddr        nft.Field
	key          nftables.SetDatatype
}{{"pods4", "_ranges4", nft.Source4, nftables.TypeIPAddr},
	{"pods6", "_ranges6", nft.Source6, nftables.TypeIP6Addr}}

// isPods reports whether the set with this name holds addresses of pods.
func isPods(set string) bool { return set == sets[0].name || set == sets[1].name }

// plan returns the table that limits pods with these addresses and samples the packets it drops.
func plan(limited map[string][]netip.Addr) *nft.Table {
	t := &nft.Table{Name: abi.NFTLimitTable}
	chains.AddDrops(t, DropReason)
	rules := []nft.Rule{nft.All(nft.InGroup(nft.Neq, abi.PodGroup), nft.Return)}
	for _, s := range sets {
		set := nft.Set{Set: nftables.Set{Name: s.name, KeyType: s.key}}
		for _, addrs := range limited {
			for _, a := range addrs {
				if a.Is4() == (s.key == nftables.TypeIPAddr) {
					set.Elements = append(set.Elements, nft.Addr(a))
				}
			}
		}
		t.Sets = append(t.Sets, set)
		rules = append(rules, nft.All(nft.Family(s.saddr.Family), s.saddr.In(s.name), isNew(),
			chains.Drop(DropReason)))
	}
	if len(limited) > 0 {
		t.Chains = append(t.Chains, nft.Base("prerouting", nftables.ChainTypeFilter,
			nftables.ChainHookPrerouting, priority, rules...))
	}
	return t
}

// isNew returns a condition that matches packets of conntrack state "new".
func isNew() nft.Rule {
	load := &expr.Ct{Register: 1, Key: expr.CtKeySTATE}
	return nft.Bits(load, expr.CtStateBitNEW, nft.Neq, 0)
}

// write limits exactly these pods, and l.limitedSites. If limited is empty and there is no site, it
// deletes the table.
func (l *Limiter) write(limited map[string][]netip.Addr) error {
	if len(limited) > 0 || len(l.o.Sites) > 0 {
		t := plan(limited)
		addSites(t, l.o.Sites, l.limitedSites)
		if err := l.put(t); err != nil {
			return err
		}
		l.limited = limited
		return nil
	}
	dropped, err := l.dropped()
	if err != nil {
		return err
	}
	if _, err := nft.Delete(abi.NFTLimitTable); err != nil {
		return err
	}
	l.mu.Lock()
	l.earlier = dropped
	l.mu.Unlock()
	l.limited = map[string][]netip.Addr{}
	return nil
}

// put makes the kernel's table equal to t. Rules that stay keep their sampling state. If the kernel
// cannot sample packets, the rules only count.
func (l *Limiter) put(t *nft.Table) error {
	if !l.tried {
		l.unsampled, l.tried = chains.SampleProbe().Try() != nil, true
	}
	if l.unsampled {
		chains.Unsampled(t)
	}
	have, err := t.Read()
	if err != nil {
		return err
	}
	if d := nft.Diff(have, t); d != nil {
		return d.Write()
	}
	return nil
}

// Drops returns how many packets the limit dropped, by reason. Any goroutine in the node's network
// namespace may call it, also during Run.
func (l *Limiter) Drops() (map[string]uint64, error) {
	counts, err := nft.Counters(abi.NFTLimitTable)
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	all := map[string]uint64{DropReason: l.earlier + counts[DropReason]}
	if len(l.o.Sites) > 0 {
		all[SiteDropReason] = l.earlierSites + counts[SiteDropReason]
	}
	return all, nil
}

// dropped returns how many packets the limit of pods dropped since the Limiter began, and before by
// the table that it found. It shows them, and those of sites. Only Run calls it.
func (l *Limiter) dropped() (uint64, error) {
	counts, err := l.tracked.dropped(abi.NFTLimitTable)
	l.mu.Lock()
	defer l.mu.Unlock()
	total := func(earlier, shown *uint64, now uint64) uint64 {
		if err == nil && *earlier+now < *shown {
			*earlier = *shown // another program deleted the table
		}
		*shown = max(*shown, *earlier+now)
		return *earlier + now
	}
	total(&l.earlierSites, &l.shown.SitesDropped, counts[SiteDropReason])
	return total(&l.earlier, &l.shown.Dropped, counts[DropReason]), err
}

// inherit reads the limited addresses from the kernel's table into l.inherited. They stay limited
// until the first reading.
func (l *Limiter) inherit() error {
	found, err := nft.Sets(abi.NFTLimitTable, isPods)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	l.inherited = map[netip.Addr]bool{} // Not nil, so that the first reading writes the table.
	for _, s := range found {
		for _, e := range s.Elements {
			if a, ok := netip.AddrFromSlice([]byte(e.Key)); ok {
				l.inherited[a] = true
			}
		}
	}
	return err
}

// Remove removes the limit of all pods, and reports whether a limit was in force. No Limiter may be
// running.
func Remove() (bool, error) { return nft.Delete(abi.NFTLimitTable) }
