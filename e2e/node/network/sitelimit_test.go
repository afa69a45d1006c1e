package network_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/kubeveil/kubeveil/e2e/lab"
	"github.com/kubeveil/kubeveil/e2e/lab/traffic"
	"github.com/kubeveil/kubeveil/e2e/node/nodetest"
	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/pkg/telemetry"
)

// A site with as many tracked connections as it may have on a node opens no other. Known ones
// continue, pods here open connections to the site, and without the limit the site does, too.
func TestSiteConnectionsAreLimited(t *testing.T) {
	const most = 20
	ctx, l := nodetest.NewLab(t, lab.Options{Sites: true})
	a, b := l.Nodes()[0], l.Nodes()[1]
	web, client := nodetest.EchoPod(ctx, t, a, "web"), nodetest.EchoPod(ctx, t, b, "client")
	nodetest.Meet(ctx, t, web, client)
	held := nodetest.Hold(ctx, t, client, web.Addr(false))
	reconfigure := func(limit int) {
		nodetest.Reconfigure(ctx, t, a, map[string]any{"sites": l.SitesOf(a),
			"siteConnections": limit})
		nodetest.WaitReady(ctx, t, a)
	}
	reconfigure(most)

	errtest.Must(t, lab.Until(ctx, 30*time.Second, func() error {
		for range 2 * most {
			if opens(ctx, client, web) != nil {
				return nil
			}
		}
		return errors.New("the site opens more connections than it may")
	}))
	nodetest.ShowsDrop(ctx, t, l, a, "", func(p telemetry.DroppedPacket) bool {
		return p.Reason == "site_connections" && p.Src == client.Addr(false)
	})
	nodetest.WaitStatus(ctx, t, a, 10*time.Second, func(s telemetry.Status) error {
		c := s.Connections
		if c == nil || c.SiteLimit != most || len(c.LimitedSites) != 1 ||
			c.LimitedSites[0].Site != "node-2" || c.SitesDropped == 0 {
			return fmt.Errorf("connections %+v", c)
		}
		return nil
	})
	errtest.Check(t, opens(ctx, web, client))

	reconfigure(0)
	errtest.Check(t, lab.Until(ctx, 20*time.Second, func() error { return opens(ctx, client, web) }))
	var result traffic.Held
	if err := held.Result(ctx, &result); err != nil || result.Records == 0 {
		t.Errorf("the held connection: %d records, %v", result.Records, err)
	}
	nodetest.NoLeaks(t, l)
}

// opens opens a connection from one pod to the echo server of another.
func opens(ctx context.Context, from, to *lab.Pod) error {
	_, err := traffic.Send(ctx, from, traffic.Exchange{To: to.Addr(false), Count: 1,
		Timeout: 400 * time.Millisecond})
	return err
}
