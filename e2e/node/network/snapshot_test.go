package network_test

import (
	"testing"
	"time"

	"github.com/kubeveil/kubeveil/e2e/lab"
	"github.com/kubeveil/kubeveil/e2e/node/nodetest"
	"github.com/kubeveil/kubeveil/internal/errtest"
)

// Nodes that read snapshot files carry their pods' traffic encrypted and refuse forged rows.
func TestSnapshotSourceNeedsNoAPIServer(t *testing.T) {
	ctx, l := nodetest.NewLab(t, lab.Options{NoAPIServer: true})
	if l.Control != nil {
		t.Fatal("the lab has an API server")
	}
	pods := nodetest.EchoPods(ctx, t, l)
	nodetest.Meet(ctx, t, pods[0], pods[1])
	talk(ctx, t, pods[0], pods[1])
	n1, n2 := l.Nodes()[0], l.Nodes()[1]

	before := settledPeers(ctx, t, n1)
	for _, f := range forgeries(l, nodetest.NodeStatus(ctx, t, n2).Devices[0].PublicKey) {
		t.Run(f.Name, func(t *testing.T) {
			errtest.Must(t, l.Announce(ctx, f.Node))
			incumbents(t, before, nodetest.WaitStatus(ctx, t, n1, 10*time.Second, f.refused).Peers)
			loud(ctx, t, n1, f)
		})
	}
	talk(ctx, t, pods[0], pods[1])

	restartVeild(ctx, t, n1)
	talk(ctx, t, pods[0], pods[1])
	noSecrets(ctx, t, l, nil)
	nodetest.NoLeaks(t, l)
}
