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
	"github.com/kubeveil/kubeveil/pkg/telemetry"
)

// ShowsDrop waits until veilctl drops, with more arguments in args, shows a wanted packet on a node.
// It logs a wait of more than two seconds, which only an emulated machine needs. A failure does not
// end the test.
func ShowsDrop(ctx context.Context, t *testing.T, l *lab.Lab, n *lab.Node, args string,
	wanted func(telemetry.DroppedPacket) bool) {
	t.Helper()
	began := time.Now()
	err := lab.Until(ctx, 30*time.Second, func() error {
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
	})
	if err != nil {
		t.Error(err)
	} else if took := time.Since(began); took > 2*time.Second {
		t.Logf("veilctl drops %s shows the packet after %v", args, took)
	}
}
