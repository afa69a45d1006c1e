package sites_test

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubeveil/kubeveil/e2e/lab"
	"github.com/kubeveil/kubeveil/e2e/node/nodetest"
	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/cluster"
)

// A cluster has as many sites as it may have. Each has an API server and a veil-site, and all
// export the same service. The cluster serves the endpoints of all, and each site serves what the
// cluster exports. A site whose API server is away keeps its endpoints, and delays no other site.
func TestMostSitesAreServed(t *testing.T) {
	nettest.NeedLong(t, "nine API servers start")
	t.Parallel()
	ctx, la := nodetest.LongLab(t, lab.Options{Nodes: -1}, 20*time.Minute)
	labs := make([]*lab.Lab, cluster.MaxSites)
	t.Cleanup(func() {
		for _, l := range labs {
			if l != nil {
				_, err := l.Finish()
				errtest.Check(t, err)
			}
		}
	})
	var starting errgroup.Group
	starting.SetLimit(2)
	for i := range labs {
		starting.Go(func() (err error) {
			labs[i], err = lab.New(ctx, lab.Options{Nodes: -1,
				Log: slog.New(slog.NewTextHandler(t.Output(), nil))})
			return err
		})
	}
	errtest.Must(t, starting.Wait())

	a := newSide(ctx, t, la, "a", "10.244.0.0/16", "192.0.2.0/24")
	a.export(ctx, t, "ours", false, "10.244.0.7")
	var sites []*side
	for i, l := range labs {
		s := newSide(ctx, t, l, string(rune('b'+i)), fmt.Sprintf("10.%d.0.0/16", 100+i),
			fmt.Sprintf("198.51.100.%d/28", 16*i))
		pair{a, s}.introduce(ctx, t)
		s.export(ctx, t, "web", false, s.addr())
		s.start(ctx)
		sites = append(sites, s)
	}
	a.start(ctx)
	a.servesAll(ctx, t, "web", sites)
	for _, s := range sites {
		s.servesAll(ctx, t, "ours", []*side{a})
	}
	nodes, err := a.Control.Dynamic.Resource(siteNodes).List(ctx, metav1.ListOptions{})
	if err != nil || len(nodes.Items) != len(sites) {
		t.Errorf("%d SiteNodes, want %d: %v", len(nodes.Items), len(sites), err)
	}

	away, left := sites[0], sites[1]
	away.gate.Set(true)
	until(ctx, t, "the link is not readable", func() error {
		c, err := a.conditions(ctx, links, "", away.name)
		if err != nil || !strings.HasPrefix(c["Readable"], "False") {
			return fmt.Errorf("conditions %q: %w", c, err)
		}
		return nil
	})
	left.unexport(ctx, t, "web")
	begin := time.Now()
	a.servesAll(ctx, t, "web", slices.DeleteFunc(slices.Clone(sites),
		func(s *side) bool { return s == left }))
	t.Logf("an unexport beside a site that is away took %v", time.Since(begin))
	for _, s := range sites {
		c, err := a.conditions(ctx, links, "", s.name)
		if err != nil || strings.HasPrefix(c["Readable"], "True") != (s != away) {
			t.Errorf("conditions of site %s: %q, %v", s.name, c, err)
		}
	}
}

// addr returns the address of the endpoint that a site exports.
func (s *side) addr() string { return s.pods[0].Addr().Next().Next().String() }

// servesAll waits until s serves the import shop/NAME with an endpoint of each of these clusters,
// and of no other.
func (s *side) servesAll(ctx context.Context, t *testing.T, name string, clusters []*side) {
	t.Helper()
	err := lab.Until(ctx, restored, func() error {
		i, addrs, err := s.served(ctx, name)
		if err != nil {
			return err
		}
		for _, c := range clusters {
			if len(addrs[c.name]) != 1 {
				return fmt.Errorf("%s is served at %v", name, addrs)
			}
		}
		if len(addrs) != len(clusters) || len(i.Status.Clusters) != len(clusters) {
			return fmt.Errorf("%s is served at %v, of %v", name, addrs, i.Status.Clusters)
		}
		return nil
	})
	if err != nil {
		t.Fatalf("cluster %s: %v", s.name, err)
	}
}
