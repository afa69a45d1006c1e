package policy_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/kubeveil/kubeveil/e2e/lab"
	"github.com/kubeveil/kubeveil/e2e/lab/traffic"
	"github.com/kubeveil/kubeveil/e2e/node/nodetest"
	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/pkg/abi"
)

// A new pod gets the address of a deleted pod with connections, and the client of these continues
// to send. The new pod's policies forbid the client, so the pod must not receive any of its
// packets, not even the first.
func TestPodInheritsNoConnections(t *testing.T) {
	ctx, l := policyLab(t)
	nodetest.AllowClients(ctx, t, l, "client")
	n1, n2 := l.Nodes()[0], l.Nodes()[1]
	former := []*lab.Pod{nodetest.StartPod(ctx, t, n1, "open"), nodetest.StartPod(ctx, t, n1, "open")}
	stranger := nodetest.StartPod(ctx, t, n2, "stranger")
	nodetest.WaitMembers(ctx, t, n1, len(former))
	nodetest.WaitMembers(ctx, t, n2, 1)
	flows := make([][]*lab.Process, len(former))
	for i, p := range former {
		nodetest.EchoAt(ctx, t, p)
		nodetest.PolicyAllows(ctx, t, "before", stranger, p, true)
		for _, a := range p.Addrs {
			f, err := traffic.Carry(ctx, stranger, a)
			errtest.Must(t, err)
			flows[i] = append(flows[i], f)
		}
	}

	for _, p := range former {
		errtest.Must(t, p.Del(ctx))
	}
	var before [2][]uint64
	for i := range flows {
		before[i] = answered(ctx, t, flows[i])
	}
	assignFrom(t, n1, former[0].Addrs)
	for i, app := range []string{"server", "open"} {
		p := nodetest.StartPod(ctx, t, n1, app)
		if !slices.Equal(p.Addrs, former[i].Addrs) {
			t.Fatalf("%s has %v, want %v again", p.Name, p.Addrs, former[i].Addrs)
		}
		nodetest.EchoAt(ctx, t, p)
	}

	// As a control, a pod that no policy selects answers the UDP flow to the earlier pod.
	errtest.Must(t, lab.Until(ctx, 20*time.Second, func() error {
		for i, n := range answered(ctx, t, flows[1]) {
			if n <= before[1][i] {
				return fmt.Errorf("%d answers before, %d now", before[1][i], n)
			}
		}
		return nil
	}))
	if now := answered(ctx, t, flows[0]); !slices.Equal(now, before[0]) {
		t.Errorf("the client of a former pod has had %d answers, then %d of the pod that forbids it",
			before[0], now)
	}
	nodetest.NoLeaks(t, l)
}

// answered returns the number of answered records of each flow.
func answered(ctx context.Context, t *testing.T, flows []*lab.Process) (counts []uint64) {
	t.Helper()
	for _, f := range flows {
		lines := func() [][]byte {
			b, err := os.ReadFile(f.Stdout)
			errtest.Must(t, err)
			return bytes.Split(bytes.TrimSpace(b), []byte("\n"))
		}
		seen := len(lines())
		errtest.Must(t, lab.Until(ctx, 20*time.Second, func() error {
			if len(lines()) < seen+2 {
				return errors.New("no new report")
			}
			return nil
		}))

		var all []traffic.Carried
		errtest.Must(t, json.Unmarshal(lines()[seen], &all))
		var sum uint64
		for _, c := range all {
			sum += c.Answered
		}
		counts = append(counts, sum)
	}
	return counts
}

// assignFrom makes host-local on a node assign addrs next.
func assignFrom(t *testing.T, n *lab.Node, addrs []netip.Addr) {
	t.Helper()
	for i, a := range addrs {
		last := filepath.Join(n.Path(abi.IPAMDir), abi.NetworkName,
			fmt.Sprintf("last_reserved_ip.%d", i))
		errtest.Must(t, os.WriteFile(last, []byte(a.Prev().String()), 0o644))
	}
}
