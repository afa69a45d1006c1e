package conntrack

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/abi"
)

// siteB is a site with the addresses of pod 2.
func siteB() Site {
	s := Site{Name: "b"}
	for _, a := range addrsOf(2) {
		s.Ranges = append(s.Ranges, netip.PrefixFrom(a, a.BitLen()))
	}
	return s
}

// newSiteLab is newLab with a limit for site b. Its second pod stands for the site, behind a tunnel.
func newSiteLab(t *testing.T, limit int) *lab {
	l := newLab(t, 0)
	o := l.o
	o.SiteLimit, o.Sites = limit, []Site{siteB()}
	l.Limiter = New(o)
	l.node.Exec(t, nettest.NeedProgram(t, "ip"), "link", "set", "vpod2", "group",
		fmt.Sprint(abi.TunnelGroup))
	l.track()
	return l
}

// All addresses of a site count together.
func TestSitesBeyondTheLimitAreDecided(t *testing.T) {
	sites := []Site{{"b", nettest.Prefixes("10.245.0.0/16", "fd42:8::/64")},
		{"c", nettest.Prefixes("10.246.0.0/16")}}
	opened := map[netip.Addr]int{}
	for a, n := range map[string]int{"10.245.0.1": 40, "10.245.7.1": 40, "fd42:8::9": 21,
		"10.246.0.1": 95, "192.0.2.1": 5000} {
		opened[netip.MustParseAddr(a)] = n
	}
	for name, c := range map[string]struct {
		limit   int
		limited map[string]bool
		want    []Usage
	}{
		"above the limit":         {100, nil, []Usage{{"b", 101}}},
		"until below nine tenths": {100, map[string]bool{"c": true}, []Usage{{"b", 101}, {"c", 95}}},
		"below the limit":         {200, map[string]bool{"b": true}, nil},
		"no limit":                {0, map[string]bool{"b": true}, nil},
	} {
		if got := decideSites(sites, opened, c.limit, c.limited); !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

// A site above the limit opens no more, its known connections continue, and pods are not affected.
func TestSiteBeyondTheLimitOpensNoMore(t *testing.T) {
	l := newSiteLab(t, 100)
	l.look()
	known := []net.Conn{l.dial(2, 0), l.dial(2, 1)}
	for _, c := range known {
		if !asks(c, true) {
			t.Fatal("the control: a question is not answered")
		}
	}
	l.open(addrsOf(2)[0], 60)
	l.open(addrsOf(2)[1], 60)
	limited := func() {
		t.Helper()
		if s := l.look(); !slices.Equal(s.LimitedSites, []Usage{{"b", 122}}) || s.Limited != nil {
			t.Fatalf("full: %+v", s)
		}
		for f := range 2 {
			if asks(l.dial(2, f), false) {
				t.Errorf("%v opens a connection beyond the limit", addrsOf(2)[f])
			}
			if !asks(known[f], true) {
				t.Errorf("a known connection of %v does not go on", addrsOf(2)[f])
			}
		}
	}
	limited()
	if !asks(l.dial(1, 0), true) {
		t.Error("a pod opens no connection")
	}
	if s := l.look(); s.SitesDropped < 2 || s.Dropped != 0 {
		t.Errorf("%d packets of sites are counted, %d of pods", s.SitesDropped, s.Dropped)
	}

	l.node.Exec(t, nettest.NeedProgram(t, "nft"), "delete table inet "+abi.NFTLimitTable)
	limited()
	l.node.Run(t, nettest.ForgetConnections)
	if s := l.look(); s.LimitedSites != nil || s.SitesDropped < 4 {
		t.Errorf("empty again: %+v", s)
	}
	if !asks(l.dial(2, 0), true) {
		t.Error("below the limit the site opens no connection")
	}
}

// A site opens no more connections in a second than its rate allows, before the table is read.
// Another program that flushes the rules turns this off for keepEvery at most.
func TestConnectionsOfASiteHaveARate(t *testing.T) {
	const packets = 3 * siteBurst
	l := newSiteLab(t, 1<<20)
	step := func(now time.Time) {
		t.Helper()
		l.node.Run(t, func() error { return l.step(now) })
	}
	now := time.Now()
	step(now)
	l.node.Exec(t, nettest.NeedProgram(t, "nft"), "delete table inet "+abi.NFTLimitTable)
	step(now.Add(keepEvery - 1))
	step(now.Add(keepEvery))

	began := time.Now()
	l.flood(2, 0, packets)
	took := time.Since(began)
	most := siteBurst + int(siteRate*took.Seconds()) + 100
	if n := l.entries(); n > most || n < siteBurst/2 {
		t.Errorf("%d entries within %v, want at most %d", n, took, most)
	}
	step(now.Add(2 * keepEvery))
	// A machine that sends slower than the rate allows loses none.
	if s := l.Status(); s.SitesDropped == 0 && most < packets || l.readings != 0 {
		t.Errorf("%d packets are counted, %d readings", s.SitesDropped, l.readings)
	}
}

// Without a limit of sites, nothing is in force for them.
func TestSitesWithoutALimit(t *testing.T) {
	l := New(LimiterConfig{Sites: []Site{siteB()}, Log: slog.New(slog.DiscardHandler)})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	nettest.NewNS(t).Run(t, func() error {
		_ = l.Run(ctx)
		if got, err := limited(); len(got) > 0 || err == nil {
			t.Errorf("limited are %v, %v", got, err)
		}
		return nil
	})
}
