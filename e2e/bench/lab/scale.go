package lab

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/kubeveil/kubeveil/e2e/bench/lab/baretunnel"
	"github.com/kubeveil/kubeveil/e2e/lab"
	"github.com/kubeveil/kubeveil/internal/poll"
	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/bench"
	"github.com/kubeveil/kubeveil/pkg/bench/load"
)

// metricsAddress is the address at which veild serves its metrics, in the node's network namespace.
const metricsAddress = "127.0.0.1:9586"

// scaled is the node with many peers.
type scaled struct {
	*run
	lab  *lab.Lab
	node *lab.Node
	http *http.Client
}

// scale registers 1,000 nodes at a real API server and measures a node that knows them. It then
// does the same with a node that also has pods (churn).
func (r *run) scale(ctx context.Context) error {
	return errors.Join(r.known(ctx), r.churn(ctx))
}

// newScaled makes a lab with one node and no peers. The caller closes the lab.
func (r *run) newScaled(ctx context.Context, family lab.Family) (*scaled, error) {
	settings := map[string]any{"metricsAddress": metricsAddress, "logLevel": "info"}
	maps.Copy(settings, plainCNI)
	l, err := lab.New(ctx, lab.Options{Nodes: 1, Family: family, VeildConfig: settings})
	if err != nil {
		return nil, err
	}
	s := &scaled{run: r, lab: l, node: l.Nodes()[0]}
	s.http = &http.Client{Timeout: 10 * time.Second,
		Transport: &http.Transport{DialContext: s.dial, DisableKeepAlives: true}}
	if err := r.endOracle(l, false); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return s, nil
}

// known measures what many known nodes cost a node without pods.
func (r *run) known(ctx context.Context) (err error) {
	s, err := r.newScaled(ctx, lab.IPv4)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.lab.Close()) }()
	start := time.Now()
	if err := s.register(ctx); err != nil {
		return err
	}
	if err := s.waitPeers(ctx, r.nodes); err != nil {
		return err
	}
	r.Progress("%d nodes registered and configured one after the other in %.1f s", r.nodes,
		time.Since(start).Seconds())
	for _, step := range []func(context.Context) error{s.memory, s.idleCPU, s.changes, s.fills} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	return nil
}

// dial connects from within the node's network namespace.
func (s *scaled) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	var conn net.Conn
	err := s.node.Do(func() error {
		var err error
		conn, err = (&net.Dialer{}).DialContext(ctx, network, addr)
		return err
	})
	return conn, err
}

// peers returns the public keys of the peers of the node's device.
func (s *scaled) peers(ctx context.Context) ([]string, error) {
	out, err := s.node.Exec(ctx, "wg", "show", baretunnel.OursDevice, "peers")
	return strings.Fields(string(out)), err
}

func (s *scaled) waitPeers(ctx context.Context, want int) error {
	return lab.Until(ctx, 90*time.Second, func() error {
		have, err := s.peers(ctx)
		if err == nil && len(have) != want {
			err = fmt.Errorf("%d peers on the device, want %d", len(have), want)
		}
		return err
	})
}

// one adds a case with one value per round and returns it.
func (s *scaled) one(name string, unit bench.Unit, values ...float64) *bench.Case {
	s.Result.Cases = append(s.Result.Cases,
		bench.Case{Name: name, Unit: unit, Ours: bench.Summarize(values)})
	c := &s.Result.Cases[len(s.Result.Cases)-1]
	s.Progress("%s: %s", labels[name], unit.Format(c.Ours.Median))
	return c
}

func (s *scaled) gate(g ...bench.Gate) { s.Result.Gates = append(s.Result.Gates, g...) }

func (s *scaled) memory(context.Context) error {
	mib, err := load.ResidentMiB(s.node.Program("veild").PID())
	if err != nil {
		return err
	}
	s.gate(bench.Below(labels[caseMemory], s.one(caseMemory, bench.MiB, mib), 80))
	return nil
}

// idleCPU waits until veild makes no more turns, and then measures veild's CPU time for s.idle.
func (s *scaled) idleCPU(ctx context.Context) error {
	pid := s.node.Program("veild").PID()
	if _, err := s.quiet(ctx); err != nil {
		return err
	}
	before, err := load.ProcessCPU(pid)
	if err != nil {
		return err
	}
	began := time.Now()
	if err := poll.Pause(ctx, s.idle); err != nil {
		return err
	}
	after, err := load.ProcessCPU(pid)
	if err != nil {
		return err
	}
	percent := 100 * (after - before).Seconds() / time.Since(began).Seconds()
	s.gate(bench.Below(labels[caseIdle], s.one(caseIdle, bench.Percent, percent), 1))
	return nil
}

// settle is the pause between two scrapes of veild's metrics. A scrape costs veild more CPU than
// the measured work, so scrapes are rare, and none runs during a measurement.
const settle = 2 * time.Second

// quiet waits until veild makes no turn between two scrapes, and returns the result of the last
// one.
func (s *scaled) quiet(ctx context.Context) (histogram, error) {
	last := histogram{count: -1}
	for range 30 {
		now, err := s.turns(ctx)
		if err != nil || now.count == last.count {
			return now, err
		}
		last = now
		if err := poll.Pause(ctx, settle); err != nil {
			return now, err
		}
	}
	return last, errors.New("veild still makes turns after a minute")
}

// changes changes one claim per round. It measures the time from the table to the device, the
// duration of whole turns, which also write the last good table, and the number of changed peers.
func (s *scaled) changes(ctx context.Context) error {
	var millis, whole []float64
	most := 0
	for round := range s.Rounds {
		before, err := s.quiet(ctx)
		if err != nil {
			return err
		}
		logged, err := s.configured()
		if err != nil {
			return err
		}
		if err := s.moveEndpoint(ctx, s.nodes/2, uint16(40000+round)); err != nil {
			return err
		}
		if _, err := s.waitConfigured(ctx, len(logged)); err != nil {
			return err
		}

		// The kernel's notifications of the change may cause another turn, which counts too.
		if err := poll.Pause(ctx, settle); err != nil {
			return err
		}
		after, err := s.turns(ctx)
		if err != nil {
			return err
		}
		since, err := s.waitConfigured(ctx, len(logged))
		if err != nil {
			return err
		}

		touched, took := 0, time.Duration(0)
		for _, c := range since {
			touched += c.Peers
			took += c.Took
		}

		turns := after.minus(before)
		millis, whole, most = append(millis, 1000*took.Seconds()),
			append(whole, turns.meanMillis()), max(most, touched)
		s.Progress("round %d/%d  one changed peer: %v from the table to the device, %d peers "+
			"touched; %.1f ms a whole turn, %.0f turns", round+1, s.Rounds, took, touched,
			turns.meanMillis(), turns.count)
	}

	s.one(caseTurn, bench.Millisecond, whole...)
	s.gate(bench.Below(labels[caseChange], s.one(caseChange, bench.Millisecond, millis...), 20),
		bench.Exactly("peers touched when one changed, in any round", most, 1, "peers"))
	return nil
}

// fills removes all peers and routes from the node and starts a new veild, which restores them. It
// measures the time from the table to the device, and the total time of that veild's turns.
func (s *scaled) fills(ctx context.Context) error {
	var millis, whole []float64
	for round := range min(3, s.Rounds) {
		if err := s.node.Program("veild").Term(ctx); err != nil {
			return fmt.Errorf("end veild: %w", err)
		}
		if err := s.empty(ctx); err != nil {
			return err
		}
		logged, err := s.configured()
		if err != nil {
			return err
		}

		start := time.Now()
		if _, err := s.node.StartProgram(ctx, "veild"); err != nil {
			return err
		}
		if _, err := s.waitConfigured(ctx, len(logged)); err != nil {
			return err
		}

		wall := time.Since(start)
		if err := poll.Pause(ctx, settle); err != nil {
			return err
		}
		t, err := s.quiet(ctx)
		if err != nil {
			return err
		}
		if err := s.waitPeers(ctx, s.nodes); err != nil {
			return err
		}
		since, err := s.waitConfigured(ctx, len(logged))
		if err != nil {
			return err
		}

		took := time.Duration(0)
		for _, c := range since {
			took += c.Took
		}

		millis, whole = append(millis, 1000*took.Seconds()), append(whole, 1000*t.sum)
		s.Progress("round %d  %d peers: %v from the table to the device; %.0f ms in %.0f whole "+
			"turns; on the device %.0f ms after veild's start", round+1, s.nodes, took, 1000*t.sum,
			t.count, wall.Seconds()*1000)
	}

	s.one(caseFillTurns, bench.Millisecond, whole...)
	s.gate(bench.Below(labels[caseFill], s.one(caseFill, bench.Millisecond, millis...), 1000))
	return nil
}

// empty removes all peers of the device and all routes into it.
func (s *scaled) empty(ctx context.Context) error {
	keys, err := s.peers(ctx)
	if err != nil {
		return err
	}
	args := []string{"set", baretunnel.OursDevice}
	for _, k := range keys {
		args = append(args, "peer", k, "remove")
	}
	if _, err := s.node.Exec(ctx, "wg", args...); err != nil {
		return err
	}
	for _, table := range []string{"main", fmt.Sprint(abi.TablePod)} {
		if err := s.node.IP(ctx,
			"route flush table "+table+" dev "+baretunnel.OursDevice); err != nil {
			return err
		}
	}
	return nil
}
