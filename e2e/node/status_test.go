package node_test

import (
	"context"
	"testing"
	"time"

	"github.com/kubeveil/kubeveil/e2e/lab"
	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/telemetry"
)

// nodeStatus asks a node's veild by its admin socket.
func nodeStatus(ctx context.Context, t *testing.T, n *lab.Node) telemetry.Status {
	t.Helper()
	s, err := telemetry.Fetch(ctx, n.Path(abi.AdminSocket))
	if err != nil {
		t.Fatalf("%s: %v", n.Name, err)
	}
	return s
}

// waitStatus waits until a node's status is as wanted and returns it.
func waitStatus(ctx context.Context, t *testing.T, n *lab.Node, limit time.Duration,
	wanted func(telemetry.Status) error) telemetry.Status {
	t.Helper()
	var s telemetry.Status
	err := lab.Until(ctx, limit, func() (err error) {
		if s, err = telemetry.Fetch(ctx, n.Path(abi.AdminSocket)); err != nil {
			return err
		}
		return wanted(s)
	})
	if err != nil {
		t.Fatalf("status of %s: %v", n.Name, err)
	}
	return s
}

// dropped is how many packets a node's guard dropped for a reason.
func dropped(ctx context.Context, t *testing.T, n *lab.Node, reason string) uint64 {
	t.Helper()
	for _, d := range nodeStatus(ctx, t, n).Guard.Drops {
		if d.Name == reason {
			return d.Packets
		}
	}
	t.Fatalf("%s: no drop reason %s", n.Name, reason)
	return 0
}
