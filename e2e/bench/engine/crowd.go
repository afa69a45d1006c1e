package engine

import (
	"context"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/kubeveil/kubeveil/internal/poll"
	"github.com/kubeveil/kubeveil/internal/secret"
	"github.com/kubeveil/kubeveil/pkg/bench"
	"github.com/kubeveil/kubeveil/pkg/engine/aead"
	"github.com/kubeveil/kubeveil/pkg/engine/noise"
	"github.com/kubeveil/kubeveil/pkg/wgkey"
	"github.com/kubeveil/kubeveil/pkg/worker"
)

// crowds holds the numbers of peers of the devices that part crowds upgrades. Each peer has a
// session.
var crowds = []int{1000, 10000}

// crowdUpgrades is the number of upgrades of each of these devices.
const crowdUpgrades = 10

// crowds measures how long a device with many peers does not forward during an upgrade.
func (s *run) crowds(ctx context.Context) error {
	for _, n := range crowds {
		still, err := measureCrowd(ctx, s.dir, n, crowdUpgrades)
		if err != nil {
			return fmt.Errorf("upgrade of %d peers: %w", n, err)
		}
		s.Progress("%d peers with sessions: stood still for %s, %s at most", n,
			bench.Millisecond.Format(still.Median), bench.Millisecond.Format(still.Max))
		s.keep(bench.Case{Name: fmt.Sprintf("upgrade_stood_still_%d", n), MTU: 1500,
			Unit: bench.Millisecond, Ours: still})
	}
	return nil
}

// measureCrowd upgrades a device that has a session with each of n peers, and returns the times in
// milliseconds during which the device did not forward.
func measureCrowd(ctx context.Context, dir string, n, upgrades int) (bench.Stat, error) {
	w := unbuilt(side{name: sides[0].name, file: fmt.Sprintf("c%d", n), engine: sides[0].engine},
		1500, dir)
	defer w.close()
	if err := w.crowd(ctx, n); err != nil {
		return bench.Stat{}, err
	}
	before, err := w.handshake(nodeA)
	if err != nil {
		return bench.Stat{}, err
	}
	for range upgrades {
		if err := w.upgrade(nodeA, ""); err != nil {
			return bench.Stat{}, err
		}
	}
	after, err := w.handshake(nodeA)
	if err != nil {
		return bench.Stat{}, err
	}
	if after != before {
		return bench.Stat{}, fmt.Errorf("the upgrades caused new handshakes")
	}

	at, err := readSteps(filepath.Join(w.dir, strconv.Itoa(nodeA), "log"))
	if err != nil {
		return bench.Stat{}, err
	}
	from, to := at[worker.StepFilled], at[worker.StepStarted]
	if len(from) != upgrades || len(to) != upgrades {
		return bench.Stat{}, fmt.Errorf("the log has %d and %d steps of %d upgrades", len(from),
			len(to), upgrades)
	}
	var still []float64
	for i := range from {
		still = append(still, float64(to[i]-from[i])/1e6)
	}
	return bench.Summarize(still), nil
}

// crowd starts a device process and makes a session between it and each of n peers. All peers share
// one socket on loopback of the device's namespace.
func (w *world) crowd(ctx context.Context, n int) error {
	if err := w.add(nodeA); err != nil {
		return err
	}
	if err := w.start(nodeA, w.mtu-overhead); err != nil {
		return err
	}

	public, keys, err := withPeers(ctx, w.socket(nodeA), n, 0)
	if err != nil {
		return err
	}
	return w.greetAll(ctx, public, keys)
}

// greetAll makes a session between the device of node a and a peer for each key.
func (w *world) greetAll(ctx context.Context, device noise.PublicKey, keys []wgkey.Private) error {
	arena := new(secret.Arena)
	defer arena.Close()
	seal, err := aead.NewWorker(arena)
	if err != nil {
		return err
	}
	p, err := w.newIdler(arena, nil)
	if err != nil {
		return err
	}
	defer p.conn.Close()

	for i := range keys {
		key := keys[i].Bytes()
		p.id.SetPrivate(&key)
		if err := p.greet(device, seal, uint32(i+1)); err != nil {
			return fmt.Errorf("peer %d: %w", i, err)
		}
		if err := ctx.Err(); err != nil {
			return err
		}
	}
	return w.sessions(ctx, len(keys))
}

// sessions waits until the device of node a had a handshake with each of want peers: it takes the
// last message of one after the peer has sent it. If some have none after five seconds, sessions
// returns an error unless 99 % have.
func (w *world) sessions(ctx context.Context, want int) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	got := 0
	err := poll.Until(ctx, 10*time.Millisecond, 100*time.Millisecond, func() error {
		got = 0
		lines, err := get(w.socket(nodeA))
		if err != nil {
			return poll.Stop(err)
		}
		for _, line := range lines {
			text, ok := strings.CutPrefix(line, "last_handshake_time_sec=")
			if ok && text != "0" {
				got++
			}
		}
		if got < want {
			return fmt.Errorf("the device had a handshake with %d peers, want %d", got, want)
		}
		return nil
	})
	if got >= want*99/100 && got < want {
		return nil
	}
	return err
}
