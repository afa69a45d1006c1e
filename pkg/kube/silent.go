package kube

import (
	"context"
	"maps"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/kubeveil/kubeveil/internal/poll"
	"github.com/kubeveil/kubeveil/internal/reflector"
	"github.com/kubeveil/kubeveil/pkg/kube/api"
	"github.com/kubeveil/kubeveil/pkg/kube/object"
)

// silentMin and silentMax bound the pauses between two requests about the same silent peer.
const silentMin, silentMax = time.Minute, 16 * time.Minute

// SetSilent sets the peers that have not answered for a while. Run reads the VeilNode of each from
// etcd, not from a cache, because the watch may have missed a change of its key.
func (c *Client) SetSilent(peers []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.silent = peers
}

// silence decides when to read which VeilNode. Only one goroutine uses it.
type silence struct {
	self string
	// spread is the time over which nodes spread their first requests about one peer, because all
	// nodes detect its silence at the same time.
	spread time.Duration
	asks   map[string]ask
}

// ask is the schedule of requests about one silent peer.
type ask struct {
	due   time.Time     // time of the next request
	pause time.Duration // pause after the next request
}

// next returns the peer whose request has been due for the longest time. ok is false if none is
// due.
func (s *silence) next(now time.Time, silent []string) (peer string, ok bool) {
	for _, name := range silent {
		a, known := s.asks[name]
		if !known {
			a = ask{now.Add(api.Spread(s.spread, s.self, name)), silentMin}
			s.asks[name] = a
		}
		if !a.due.After(now) && (!ok || a.due.Before(s.asks[peer].due)) {
			peer, ok = name, true
		}
	}
	if len(s.asks) > len(silent) {
		is := map[string]bool{}
		for _, name := range silent {
			is[name] = true
		}
		maps.DeleteFunc(s.asks, func(name string, _ ask) bool { return !is[name] })
	}
	if ok {
		a := s.asks[peer]
		s.asks[peer] = ask{now.Add(a.pause), min(2*a.pause, silentMax)}
	}
	return peer, ok
}

// askSilent reads the VeilNodes of silent peers, at most one per tick, until ctx ends.
func (c *Client) askSilent(ctx context.Context) {
	s := silence{self: c.node, spread: c.times.silentSpread, asks: map[string]ask{}}
	_ = poll.Each(ctx, c.times.silentTick, func(now time.Time) {
		c.mu.Lock()
		silent := c.silent
		c.mu.Unlock()
		if peer, ok := s.next(now, silent); ok {
			c.askVeilNode(ctx, peer)
		}
	})
}

// askVeilNode reads one VeilNode by a quorum read. It stores an object that is newer than the one
// from the watch. If the object is older or gone, the watch has data from before a restore of etcd,
// so all VeilNodes are read again. Errors of the API server are ignored here, because the reflector
// reports them.
func (c *Client) askVeilNode(ctx context.Context, name string) {
	ctx, cancel := context.WithTimeout(ctx, c.server.Times.Request)
	defer cancel()
	before, known := c.veilNodes.get(name)
	live, err := c.server.Read(ctx, object.VeilNodes, name)
	switch {
	case apierrors.IsNotFound(err) && known:
		c.veilNodeReader.ReadAgain()
		return
	case err != nil:
		return
	}

	version := live.ResourceVersion
	switch {
	case known && reflector.Older(version, before.version):
		c.log.Info("the API server returned an older version of a VeilNode: reading all again",
			"veilnode", name)
		c.veilNodeReader.ReadAgain()
	case !known || version != before.version:
		took := c.veilNodes.replace(live, func(now veilNodeEntry, has bool) bool {
			return has == known && (!has || reflector.Older(now.version, version))
		})
		if took {
			c.log.Info("a silent peer has a VeilNode that the watch did not show", "veilnode", name)
		}
	}
}
