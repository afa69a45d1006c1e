package network_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/kubeveil/kubeveil/e2e/lab"
	"github.com/kubeveil/kubeveil/e2e/lab/traffic"
	"github.com/kubeveil/kubeveil/e2e/node/nodetest"
	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/pkg/telemetry"
)

// untracked is a flow in clear of a host process that conntrack does not track, and the row with
// which the first node must show it.
type untracked struct {
	from    traffic.Place
	clients []netip.Addr // addresses of from
	proto   string
	to      netip.Addr
	row     int
}

// untrackedRules exclude the lab's echo port from conntrack.
const untrackedRules = `chain out { type filter hook output priority -300;
		meta l4proto { tcp, udp } th dport 7000 notrack; meta l4proto { tcp, udp } th sport 7000 notrack; }
	chain in { type filter hook prerouting priority -300; iifname eth0 jump both; }
	chain both { meta l4proto { tcp, udp } th dport 7000 notrack;
		meta l4proto { tcp, udp } th sport 7000 notrack; }`

// untrackedWays excludes traffic of the first node from conntrack. It returns the number of flows
// in clear. Tests of e2e/node/services (row 10) and pkg/flow (row 9, which an address has an hour
// after its service is deleted) have further ones.
func untrackedWays(ctx context.Context, t *testing.T, l *lab.Lab) int {
	t.Helper()
	a, b := l.Nodes()[0], l.Nodes()[1]
	foreign(ctx, t, a, "foreign_notrack", untrackedRules)
	defer nodetest.Run(ctx, t, a, "nft", "delete table inet foreign_notrack")
	outside := l.OutsideAddrs()
	var ways []untracked
	for i, to := range outside {
		for _, proto := range []string{"tcp", "udp"} {
			ways = append(ways, untracked{a, a.Addrs, proto, to, 1},
				untracked{a, a.Addrs, proto, b.Addrs[i], 2})
		}
		ways = append(ways, untracked{l.Outside, outside, "tcp", a.Addrs[i], 1},
			untracked{b, b.Addrs, "tcp", a.Addrs[i], 2})
	}
	for _, w := range ways {
		w.start(ctx, t)
	}

	err := lab.Until(ctx, 30*time.Second, func() error {
		out, err := a.Exec(ctx, l.Program("veilctl"), "flows", "--clear", "-o", "json")
		if err != nil {
			return err
		}
		var missing []error
		for _, w := range ways {
			if !w.in(out) {
				missing = append(missing, fmt.Errorf("no %s from %s to %s with row %d", w.proto, w.from,
					w.to, w.row))
			}
		}
		if len(missing) > 0 {
			return fmt.Errorf("%w\n%s", errors.Join(missing...), out)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	return len(ways)
}

// start starts the flow, which lasts until the lab ends.
func (w untracked) start(ctx context.Context, t *testing.T) {
	t.Helper()
	script := fmt.Sprintf("exec 3<>/dev/%s/%s/%d; echo between-hosts >&3; exec sleep 600", w.proto,
		w.to, traffic.EchoPort)
	_, err := w.from.Start(ctx, "bash", "-c", script)
	errtest.Must(t, err)
}

// in reports whether the lines of JSON contain the flow with its row and source.
func (w untracked) in(lines []byte) bool {
	for line := range bytes.Lines(lines) {
		var f telemetry.Flow
		if err := json.Unmarshal(line, &f); err == nil && f.Protocol == w.proto &&
			f.Server == w.to && slices.Contains(w.clients, f.Client) && f.Row == w.row &&
			f.Source == "sockets" && !f.Alarm && f.Class.Clear() {
			return true
		}
	}
	return false
}
