package nodetest

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/kubeveil/kubeveil/e2e/lab"
	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/telemetry"
	"github.com/kubeveil/kubeveil/pkg/telemetry/admin"
)

// NodeStatus returns the status from the admin socket of a node's veild.
func NodeStatus(ctx context.Context, t *testing.T, n *lab.Node) telemetry.Status {
	t.Helper()
	s, err := admin.Fetch(ctx, n.Path(abi.AdminSocket))
	if err != nil {
		t.Fatalf("%s: %v", n.Name, err)
	}
	return s
}

// WaitStatus waits for at most limit until wanted returns nil for the node's status, and returns
// that status.
func WaitStatus(ctx context.Context, t *testing.T, n *lab.Node, limit time.Duration,
	wanted func(telemetry.Status) error) telemetry.Status {
	t.Helper()
	var s telemetry.Status
	err := lab.Until(ctx, limit, func() (err error) {
		if s, err = admin.Fetch(ctx, n.Path(abi.AdminSocket)); err != nil {
			return err
		}
		return wanted(s)
	})
	if err != nil {
		t.Fatalf("status of %s: %v", n.Name, err)
	}
	return s
}

// Dropped returns how many packets a node's guard has dropped for a reason.
func Dropped(ctx context.Context, t *testing.T, n *lab.Node, reason string) uint64 {
	t.Helper()
	for _, d := range NodeStatus(ctx, t, n).Guard.Drops {
		if d.Name == reason {
			return d.Packets
		}
	}
	t.Fatalf("%s: no drop reason %s", n.Name, reason)
	return 0
}

// dropShown is the time after which veilctl drops must show a packet that was dropped.
const dropShown = 2 * time.Second

// ShowsDrop waits until veilctl drops, with more arguments in args, shows a wanted packet that the
// node dropped before the call. A veilctl that starts dropShown after the call must show it. The
// time that veilctl itself takes does not count, because an emulated machine is slow. A failure does
// not end the test.
func ShowsDrop(ctx context.Context, t *testing.T, l *lab.Lab, n *lab.Node, args string,
	wanted func(telemetry.DroppedPacket) bool) {
	t.Helper()
	began, late := time.Now(), time.Duration(0)
	err := lab.Until(ctx, 30*time.Second, func() error {
		start := time.Now()
		err := showsDrop(ctx, l, n, args, wanted)
		if err != nil {
			late = start.Sub(began)
		}
		return err
	})
	if err == nil && late > dropShown {
		err = fmt.Errorf("%v after the packet, veilctl drops %s did not show it", late, args)
	}
	errtest.Check(t, err)
}

// showsDrop returns an error if veilctl drops does not show a wanted packet.
func showsDrop(ctx context.Context, l *lab.Lab, n *lab.Node, args string,
	wanted func(telemetry.DroppedPacket) bool) error {
	out, err := n.Exec(ctx, l.Program("veilctl"), strings.Fields("drops -o json "+args)...)
	if err != nil {
		return err
	}
	for line := range bytes.Lines(out) {
		var p telemetry.DroppedPacket
		if err := json.Unmarshal(line, &p); err != nil {
			return err
		}
		if wanted(p) {
			return nil
		}
	}
	return fmt.Errorf("veilctl drops %s shows\n%s", args, out)
}
