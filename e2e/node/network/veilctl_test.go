package network_test

import (
	"context"
	"encoding/json"
	"errors"
	"testing"

	"github.com/kubeveil/kubeveil/e2e/lab"
	"github.com/kubeveil/kubeveil/e2e/node/nodetest"
	"github.com/kubeveil/kubeveil/internal/errtest"
)

// veilctlOnANode runs the commands of a person on a node, against the running daemon.
func veilctlOnANode(ctx context.Context, t *testing.T, l *lab.Lab, pods []*lab.Pod) {
	node := l.Nodes()[0]
	for _, c := range []struct {
		args string
		want []string
	}{
		{"status", []string{"ready for pods", "1 up", "in force on eth0",
			"1440 for pods over 1500"}},
		{"peers", []string{"node-2", "up", "51820"}},
		{"mtu", []string{"1500", "1440"}},
		{"guard", []string{"eth0", "dst_in_range"}},
	} {
		nodetest.VeilctlSays(ctx, t, l, node, c.args, c.want...)
	}

	sink := nodetest.Sink(ctx, t, pods[1])
	source := nodetest.Source(ctx, t, pods[0], pods[1].Addrs[0], 0)
	out, err := node.Exec(ctx, l.Program("veilctl"), "leakcheck", "--for", "2s", "-o", "json")
	if err != nil {
		t.Errorf("veilctl leakcheck: %v", err)
	}

	errtest.Check(t, errors.Join(source.Kill(ctx), sink.Kill(ctx)))
	var seen struct{ Frames, Tunnel, Leaks, Dropped uint64 }
	if err := json.Unmarshal(out, &seen); err != nil {
		t.Fatalf("veilctl leakcheck: %v:\n%s", err, out)
	}

	t.Logf("leakcheck: %+v", seen)
	if seen.Tunnel == 0 || seen.Leaks != 0 || seen.Dropped != 0 {
		t.Errorf("leakcheck saw %+v", seen)
	}
}
