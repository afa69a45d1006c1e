package kube

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/kubeveil/kubeveil/pkg/cluster"
	"github.com/kubeveil/kubeveil/pkg/kube/object"
	"k8s.io/klog/v2"
)

// Run watches the cluster and calls yield, from one goroutine, with each state that differs from
// the previous one. It yields a first change at once, and combines later changes within 20 ms. It
// also keeps the published claim, and deletes VeilNodes without a Node.
//
// When ctx ends, Run ends all its goroutines and returns ctx's error. If the API server is
// unreachable or refuses requests, Run retries, and Problems reports it.
func (c *Client) Run(ctx context.Context, yield func(cluster.State)) error {
	// Silence client-go's log: the reflectors report the same errors, once and with a remedy.
	ctx, cancel := context.WithCancel(klog.NewContext(ctx, klog.Logger{}))
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	wg.Go(func() { c.server.Reflect(ctx, object.Nodes, c.nodes) })
	c.veilNodeReader = c.server.Reflector(object.VeilNodes, c.veilNodes)
	wg.Go(func() { c.veilNodeReader.Run(ctx, c.veilNodes) })
	wg.Go(func() { c.server.ReflectServed(ctx, object.ServiceCIDRs, c.ranges) })
	if c.siteNodes != nil {
		r := c.server.Reflector(object.SiteNodes, c.siteNodes)
		c.siteNodes.Again = r.ReadAgain
		wg.Go(func() { r.Run(ctx, c.siteNodes) })
	}
	wg.Go(func() { c.askSilent(ctx) })
	wg.Go(func() { c.server.Reflect(ctx, object.APIServerSlice, c.slices) })
	wg.Go(func() { c.lookupHost(ctx) })
	wg.Go(func() { c.confirmLoss(ctx) })
	wg.Go(func() { c.publisher.Run(ctx) })
	wg.Go(func() { c.collectOrphans(ctx) })

	last := cluster.State{Nodes: c.recalled}
	l := listing{fromNodes: c.nodes.follow(), fromVeilNodes: c.veilNodes.follow()}
	pause := time.NewTimer(0)
	defer pause.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-c.changed:
		}
		c.publisher.Check()
		if next, changed := c.state(&l, last); changed {
			last = next
			yield(l.sites.With(next))
		}
		pause.Reset(c.times.coalesce)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-pause.C:
		}
	}
}

// stateKinds are the prefixes of problems about the objects that make up a State.
var stateKinds = []string{"Node ", "VeilNode ", "ServiceCIDR ", "SiteNode"}

// state returns the State from the content of the stores, without nodes of sites. changed is false
// if it and the nodes of sites equal the last ones, and until the Nodes have been listed.
func (c *Client) state(l *listing, last cluster.State) (s cluster.State, changed bool) {
	nodes, nodesSynced := c.nodes.take(l.fromNodes)
	veilNodes, veilNodesSynced := c.veilNodes.take(l.fromVeilNodes)
	apis, apisSynced := c.slices.all()
	if !nodesSynced {
		return cluster.State{}, false
	}
	s.Synced = veilNodesSynced && apisSynced
	for _, e := range apis {
		s.APIServers = append(s.APIServers, e.addrs...)
	}
	c.mu.Lock()
	s.APIServers = sortedAddrs(append(s.APIServers, c.hostAddrs...))
	// Before the API server's address is known, a worker could claim it.
	s.Synced = s.Synced && c.looked
	c.mu.Unlock()

	found := map[string]string{}
	c.addRanges(&s, found)
	sitesChanged := c.siteNodes.Read(&l.sites, found)
	s.SitesUnlisted = l.sites.Unlisted()
	ours := sameMemory(last.Nodes, l.nodes) // last has no node that is not listed
	change := l.update(c, nodes, veilNodes, s.Synced)
	l.note(c, found)
	s.Nodes = l.nodes
	if change.all || !ours || c.inDoubt() || 2*change.lost > len(last.Nodes) {
		s = c.keepSuddenlyLost(last.Nodes, s)
		change.any = !slices.EqualFunc(s.Nodes, last.Nodes, cluster.Node.Equal)
	}

	changed = last.Revision == 0 || change.any || sitesChanged || s.Synced != last.Synced ||
		s.SitesUnlisted != last.SitesUnlisted ||
		s.RangesListed != last.RangesListed || !slices.Equal(s.APIServers, last.APIServers) ||
		!slices.Equal(s.ServiceRanges, last.ServiceRanges)
	s.Revision = last.Revision + 1
	return s, changed
}

// sameMemory reports whether a and b are the same slice.
func sameMemory(a, b []cluster.Node) bool {
	return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0])
}

// lookupHost keeps hostAddrs up to date: the addresses of the host in the credentials. It looks
// them up at intervals, and with each new watch, because that may use another server.
func (c *Client) lookupHost(ctx context.Context) {
	for {
		wait := c.times.lookup
		addrs, err := c.hostAddresses(ctx)
		if err != nil {
			c.server.Report("look up API server",
				fmt.Errorf("host %s of the API server has no address (%w): write an address into "+
					"the kubeconfig, or repair the name service", c.host, err))
			wait = c.server.Times.RetryMax
		} else {
			c.server.Report("look up API server", nil)
			c.setHostAddrs(addrs)
		}
		c.setLooked()
		select {
		case <-ctx.Done():
			return
		case <-c.server.Watched:
		case <-time.After(wait):
		}
	}
}

func (c *Client) hostAddresses(ctx context.Context) ([]netip.Addr, error) {
	if a, err := netip.ParseAddr(c.host); err == nil {
		return []netip.Addr{a}, nil
	}
	ctx, cancel := context.WithTimeout(ctx, c.server.Times.Request)
	defer cancel()
	return c.lookup(ctx, c.host)
}

// setLooked records that the first look-up is done.
func (c *Client) setLooked() {
	c.mu.Lock()
	first := !c.looked
	c.looked = true
	c.mu.Unlock()
	if first {
		c.wake()
	}
}

// setHostAddrs stores addrs, without addresses that a node cannot have.
func (c *Client) setHostAddrs(addrs []netip.Addr) {
	var keep []netip.Addr
	for _, a := range addrs {
		if a = a.WithZone("").Unmap(); !a.IsLoopback() && !a.IsUnspecified() {
			keep = append(keep, a)
		}
	}
	keep = sortedAddrs(keep)
	c.mu.Lock()
	same := slices.Equal(keep, c.hostAddrs)
	c.hostAddrs = keep
	c.mu.Unlock()
	if !same {
		c.wake()
	}
}
