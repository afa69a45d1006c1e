package conntrack

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"

	"github.com/kubeveil/kubeveil/internal/nft"
	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/cluster"
	"github.com/kubeveil/kubeveil/pkg/guard/chains"
)

// Another cluster chooses its pods' addresses and ports, so it counts as a whole: all addresses in
// the ranges of a site together have one limit. A site can send much faster than a pod, so its new
// connections have a rate as well, which bounds what it opens between two readings of the table:
//
//	site ═► veil0 ─► conntrack ─► guard: exported? ─► sites (-149): limited, or too fast: count, drop
//
// The chain is a NAT chain, which the kernel evaluates only for the first packet of a connection.
// So known connections cost nothing, and datagrams without an answer count once.

// Site is another cluster.
type Site struct {
	Name string
	// Ranges contain all addresses of the site.
	Ranges []netip.Prefix
}

// sitesOf returns the open sites of a configuration.
func sitesOf(all []cluster.Site) (sites []Site) {
	for _, s := range all {
		if s.Open() {
			sites = append(sites, Site{s.Name, slices.Concat(s.PodRanges, s.NodeRanges)})
		}
	}
	return sites
}

// SiteDropReason names the drop reason of packets with which a site would open a connection above
// its limit or its rate.
const SiteDropReason = "site_connections"

// siteRate is the number of connections per second that one site may open, and siteBurst what it
// may open at once.
const siteRate, siteBurst = 10_000, 10_000

// afterExports is after the chain of the guard that drops what is not exported (-150).
const afterExports = priority + 1

// keepEvery is the time after which the rules of sites are compared with the kernel again, because
// another program may have flushed them.
const keepEvery = 10 * time.Second

// contains reports whether an address belongs to the site.
func (s Site) contains(a netip.Addr) bool {
	return slices.ContainsFunc(s.Ranges, func(p netip.Prefix) bool { return p.Contains(a) })
}

// decideSites returns the sites to limit, as decide does for pods. It is pure.
func decideSites(sites []Site, opened map[netip.Addr]int, limit int,
	limited map[string]bool) (out []Usage) {
	if limit == 0 {
		return nil
	}
	for _, s := range sites {
		entries := 0
		for a, n := range opened {
			if s.contains(a) {
				entries += n
			}
		}
		if entries > limit || limited[s.Name] && entries > limit/10*9 {
			out = append(out, Usage{s.Name, entries})
		}
	}
	slices.SortFunc(out, func(a, b Usage) int { return cmp.Compare(a.Pod, b.Pod) })
	return out
}

// limitSites makes exactly these sites limited. The next write of the table enforces it.
func (l *Limiter) limitSites(sites []Usage) {
	limited := map[string]bool{}
	for _, s := range sites {
		limited[s.Pod] = true
		if !l.limitedSites[s.Pod] {
			l.o.Log.Warn("another cluster has too many tracked connections and opens no more until "+
				"some end", "site", s.Pod, "entries", s.Entries, "limit", l.Status().SiteLimit)
		}
	}
	for name := range l.limitedSites {
		if !limited[name] {
			l.o.Log.Info("another cluster may open connections again", "site", name)
		}
	}

	l.limitedSites = limited
	l.mu.Lock()
	l.shown.LimitedSites = sites
	l.mu.Unlock()
}

// keepSites compares the rules of sites with the kernel after keepEvery.
func (l *Limiter) keepSites(now time.Time) error {
	if len(l.o.Sites) == 0 || now.Before(l.keepAt) {
		return nil
	}
	l.keepAt = now.Add(keepEvery)
	if err := l.write(l.limited); err != nil {
		return fmt.Errorf("limit sites' connections: %w", err)
	}
	_, err := l.dropped()
	return err
}

// addSites adds to t the sets and chains of sites.
func addSites(t *nft.Table, sites []Site, limited map[string]bool) {
	if len(sites) == 0 {
		return
	}
	chains.AddDrops(t, SiteDropReason)
	rules := []nft.Rule{nft.All(nft.InGroup(nft.Neq, abi.TunnelGroup), nft.Return)}
	for i, s := range sites {
		// Too fast, or limited at all.
		over := nft.Rule{&expr.Limit{Type: expr.LimitTypePkts, Rate: siteRate, Over: true,
			Unit: expr.LimitTimeSecond, Burst: siteBurst}}
		if limited[s.Name] {
			over = nil
		}

		target := fmt.Sprintf("site%d", i+1)
		t.Chains = append(t.Chains, nft.Target(target,
			nft.All(over, chains.Drop(SiteDropReason))))
		for _, of := range sets {
			set := nft.Set{Set: nftables.Set{Interval: true, KeyType: of.key,
				Name: target + of.suffix}}
			for _, p := range s.Ranges {
				if p.Addr().Is4() == (of.key == nftables.TypeIPAddr) {
					set.Elements = append(set.Elements, nft.Interval(p))
				}
			}
			t.Sets = append(t.Sets, set)
			rules = append(rules, nft.All(of.saddr.In(set.Name), nft.Jump(target)))
		}
	}
	t.Chains = append(t.Chains, nft.Base("sites", nftables.ChainTypeNAT,
		nftables.ChainHookPrerouting, afterExports, rules...))
}
