package vm_test

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kubeveil/kubeveil/e2e/lab/buildtree"
	"github.com/kubeveil/kubeveil/e2e/vm"
	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/leak"
	"github.com/kubeveil/kubeveil/pkg/telemetry"
)

const (
	// suspension is longer than the life of a session (REJECT_AFTER_TIME, 180 s).
	suspension = 200 * time.Second
	// afterCause bounds how long traffic may be away after the cause has ended.
	afterCause = 20 * time.Second
)

// A whole machine is suspended, and later boots with a wrong clock. Expected, and written before
// the first run:
//
//   - Nothing is in clear at any time.
//   - While the machine is suspended, its peer reports it as silent. When the machine goes on, its
//     clocks are 200 s behind, and it still believes in a session that its peer has ended. Packets
//     that it sends pass within 20 s.
//   - While the clock of the machine is a month behind, its peer refuses handshakes, because it
//     has seen later timestamps of the same key. The status of the machine names its clock. Packets
//     that it sends pass within 20 s after its clock is right.
func TestSuspendedMachineAndWrongClock(t *testing.T) {
	ctx, c := newCluster(t, vm.ClusterConfig{Bare: true})
	root, err := buildtree.Root()
	errtest.Must(t, err)
	tables := tablesOf(t, c)
	for i, m := range c.Machines {
		startVeild(ctx, t, m, tables[i], c.Lab.Family())
		assignInside(ctx, t, m, tables[i])
		errtest.Must(t, m.PutFile(ctx, "/usr/local/bin/veilctl",
			filepath.Join(root, "out/bin/veilctl")))
	}
	peer, machine := c.Machines[0], c.Machines[1]
	ping := func(from, to, times int) error {
		return errtest.Of(c.Machines[from].Exec(ctx, fmt.Sprintf("ping -n -c %d -W 1 -I %s %s",
			times, tables[from].inside(), tables[to].inside())))
	}
	reaches := func(from, to int) error { return ping(from, to, 1) }
	until(ctx, t, time.Minute, "the tunnel", func() error { return reaches(1, 0) })

	t.Run("suspended", func(t *testing.T) {
		errtest.Must(t, machine.Suspend(ctx))
		named := false
		for began := time.Now(); time.Since(began) < suspension; {
			if reaches(0, 1) == nil {
				t.Fatal("the machine answers while it is suspended")
			}
			named = named || slices.ContainsFunc(status(ctx, t, peer).Peers,
				func(p telemetry.Peer) bool { return p.State == telemetry.PeerSilent })
		}
		if !named {
			t.Errorf("%s does not report its peer as silent", peer.Name)
		}
		errtest.Must(t, machine.Resume(ctx))
		back(ctx, t, func() error { return reaches(1, 0) })
		errtest.Check(t, reaches(0, 1))
	})

	t.Run("a wrong clock at boot", func(t *testing.T) {
		// Only the machine begins handshakes: initiations of its peer are dropped.
		shell(ctx, t, peer, fmt.Sprintf("nft 'table inet test { chain output { type filter hook "+
			"output priority 0; udp dport %d @th,64,8 1 drop; }; }'", abi.TunnelPort))
		// cp keeps the times of files: the key is as old as it was before.
		const files = "/run/kubeveil/key /run/kubeveil/table.json /run/systemd/system/veild.service"
		shell(ctx, t, machine, "mkdir -m 700 /var/lib/before && cp -a "+files+
			" /var/lib/before/ && sync")
		errtest.Must(t, machine.RestartAt(ctx, time.Now().AddDate(0, -1, 0)))
		assignInside(ctx, t, machine, tables[1])
		shell(ctx, t, machine, "mkdir -m 700 /run/kubeveil && cd /var/lib/before && "+
			"cp -a key table.json /run/kubeveil/ && mkdir -p /run/systemd/system && "+
			"cp -a veild.service /run/systemd/system/ && systemctl daemon-reload && "+
			"systemctl start veild")

		namesClock := func(want bool) error {
			s := status(ctx, t, machine)
			named := strings.Contains(strings.Join(s.Problems, "\n"), "the clock was set back")
			if s.Node == "" || named != want {
				return fmt.Errorf("status of %q with problems %q", s.Node, s.Problems)
			}
			return nil
		}
		until(ctx, t, time.Minute, "a status that names the clock",
			func() error { return namesClock(true) })
		if ping(1, 0, 10) == nil {
			t.Error("the peer accepts a handshake of a clock that is a month behind")
		}

		shell(ctx, t, machine, fmt.Sprintf("date -s @%d", time.Now().Unix()))
		back(ctx, t, func() error { return reaches(1, 0) })
		until(ctx, t, time.Minute, "a status without the clock",
			func() error { return namesClock(false) })
	})

	result, err := c.Close()
	errtest.Check(t, err)
	t.Logf("%d frames, %d plaintext: %v", result.Frames, result.Plaintext, result.Kinds)
	errtest.Check(t, result.Err())
	if result.Kinds[leak.Tunnel] == 0 {
		t.Error("the oracle saw no tunnel packet")
	}
}

// back waits until traffic is back after its cause has ended.
func back(ctx context.Context, t *testing.T, reaches func() error) {
	t.Helper()
	began := time.Now()
	until(ctx, t, afterCause, "traffic after the end of the cause", reaches)
	t.Logf("traffic was back after %v", time.Since(began).Round(100*time.Millisecond))
}

// status returns the status of a machine's veild. While veild starts, it is empty.
func status(ctx context.Context, t *testing.T, m *vm.Machine) (s telemetry.Status) {
	t.Helper()
	out, _ := m.Exec(ctx, "veilctl status -o json") // fails while the node is not ready
	if len(out) > 0 {
		errtest.Must(t, json.Unmarshal(out, &s))
	}
	return s
}
