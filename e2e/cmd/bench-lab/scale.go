package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/kubeveil/kubeveil/e2e/bench"
	"github.com/kubeveil/kubeveil/e2e/bench/load"
	"github.com/kubeveil/kubeveil/e2e/lab"
	"github.com/kubeveil/kubeveil/pkg/config"
)

// metricsAddress is where veild of the part scale serves its metrics, inside its node.
const metricsAddress = "127.0.0.1:9586"

// scaled is the node that knows many.
type scaled struct {
	*run
	lab  *lab.Lab
	node *lab.Node
	http *http.Client
}

// scale makes a node know 1,000 others through a real API server.
func (r *run) scale(ctx context.Context) (err error) {
	l, err := lab.New(ctx, lab.Options{Nodes: 1, Family: lab.IPv4, VeildConfig: map[string]any{"metricsAddress": metricsAddress, "logLevel": "info"}})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.Close()) }()
	s := &scaled{run: r, lab: l, node: l.Nodes()[0]}
	s.http = &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DialContext: s.dial, DisableKeepAlives: true}}
	if err := r.endOracle(l, false); err != nil {
		return err
	}
	start := time.Now()
	if err := s.register(ctx); err != nil {
		return err
	}
	if err := s.waitPeers(ctx, r.nodes); err != nil {
		return err
	}
	r.say("%d nodes registered and configured one after the other in %.1f s", r.nodes, time.Since(start).Seconds())
	for _, step := range []func(context.Context) error{s.memory, s.idleCPU, s.changes, s.fills} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	return nil
}

// dial connects within the node.
func (s *scaled) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	var conn net.Conn
	err := s.node.Do(func() error {
		var err error
		conn, err = (&net.Dialer{}).DialContext(ctx, network, addr)
		return err
	})
	return conn, err
}

// peers are the public keys on the device.
func (s *scaled) peers(ctx context.Context) ([]string, error) {
	out, err := s.node.Exec(ctx, "wg", "show", oursDevice, "peers")
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

// one adds a case with a value a round, and gives it.
func (s *scaled) one(name string, unit bench.Unit, values ...float64) *bench.Case {
	s.result.Cases = append(s.result.Cases, bench.Case{Name: name, Unit: unit, Ours: bench.Summarize(values)})
	c := &s.result.Cases[len(s.result.Cases)-1]
	s.say("%s: %s", labels[name], unit.Format(c.Ours.Median))
	return c
}

func (s *scaled) gate(g ...bench.Gate) { s.result.Gates = append(s.result.Gates, g...) }

func (s *scaled) memory(context.Context) error {
	mib, err := load.ResidentMiB(s.node.Program("veild").PID())
	if err != nil {
		return err
	}
	s.gate(bench.Below(labels[caseMemory], s.one(caseMemory, bench.MiB, mib), 80))
	return nil
}

// idleCPU waits until the handshakes that nobody answers are given up, then watches.
func (s *scaled) idleCPU(ctx context.Context) error {
	pid := s.node.Program("veild").PID()
	if err := s.quiet(ctx); err != nil {
		return err
	}
	before, err := load.ProcessCPU(pid)
	if err != nil {
		return err
	}
	began := time.Now()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(s.idle):
	}
	after, err := load.ProcessCPU(pid)
	if err != nil {
		return err
	}
	percent := 100 * (after - before).Seconds() / time.Since(began).Seconds()
	s.gate(bench.Below(labels[caseIdle], s.one(caseIdle, bench.Percent, percent), 1))
	return nil
}

// quiet waits until veild has made no turn for two seconds.
func (s *scaled) quiet(ctx context.Context) error {
	var last turns
	since := time.Now()
	return lab.Until(ctx, 60*time.Second, func() error {
		now, err := s.turns(ctx)
		if err != nil {
			return err
		}
		if now != last {
			last, since = now, time.Now()
		}
		if time.Since(since) < 2*time.Second {
			return errors.New("veild makes turns still")
		}
		return nil
	})
}

// turns are the attempts of veild to make the kernel match the table: their number and the
// seconds they took.
type turns struct{ count, seconds float64 }

func (t turns) millisSince(before turns) (mean float64, n int) {
	n = int(t.count - before.count)
	if n == 0 {
		return 0, 0
	}
	return 1000 * (t.seconds - before.seconds) / float64(n), n
}

func (s *scaled) turns(ctx context.Context) (turns, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+metricsAddress+"/metrics", nil)
	if err != nil {
		return turns{}, err
	}
	resp, err := s.http.Do(req)
	if err != nil {
		return turns{}, err
	}
	defer resp.Body.Close()
	return parseTurns(resp.Body)
}

func parseTurns(r io.Reader) (turns, error) {
	t := turns{-1, -1}
	for sc := bufio.NewScanner(r); sc.Scan(); {
		name, value, _ := strings.Cut(sc.Text(), " ")
		v, err := strconv.ParseFloat(value, 64)
		switch {
		case err != nil:
		case name == "kubeveil_table_apply_duration_seconds_sum":
			t.seconds = v
		case name == "kubeveil_table_apply_duration_seconds_count":
			t.count = v
		}
	}
	if t.count < 0 || t.seconds < 0 {
		return t, errors.New("the metrics do not say how long a turn takes")
	}
	return t, nil
}

// changes changes one claim a round, and looks how long a turn takes and how many peers it touches.
func (s *scaled) changes(ctx context.Context) error {
	var millis []float64
	var touched []int
	for round := range s.rounds {
		if err := s.quiet(ctx); err != nil {
			return err
		}
		logged, err := s.configured()
		if err != nil {
			return err
		}
		before, err := s.turns(ctx)
		if err != nil {
			return err
		}
		port := uint16(40000 + round)
		if err := s.moveEndpoint(ctx, s.nodes/2, port); err != nil {
			return err
		}
		endpoint := netip.AddrPortFrom(fakeAddr(s.nodes/2), port).String()
		err = lab.Until(ctx, 10*time.Second, func() error {
			out, err := s.node.Exec(ctx, "wg", "show", oursDevice, "endpoints")
			if err == nil && !strings.Contains(string(out), endpoint) {
				err = fmt.Errorf("no peer has endpoint %s", endpoint)
			}
			return err
		})
		if err != nil {
			return err
		}
		if err := s.quiet(ctx); err != nil {
			return err
		}
		after, err := s.turns(ctx)
		if err != nil {
			return err
		}
		mean, n := after.millisSince(before)
		millis = append(millis, mean)
		all, err := s.configured()
		if err != nil {
			return err
		}
		sum := 0
		for _, peers := range all[len(logged):] {
			sum += peers
		}
		touched = append(touched, sum)
		s.say("round %d/%d  one changed peer: %.1f ms a turn, %d turns, %d peers touched", round+1, s.rounds, mean, n, sum)
	}
	most := 0
	for _, n := range touched {
		most = max(most, n)
	}
	s.gate(bench.Below(labels[caseChange], s.one(caseChange, bench.Millisecond, millis...), 20),
		bench.Exactly("peers touched when one changed, in any round", most, 1, "peers"))
	return nil
}

// configured are the numbers of peers that veild says it configured, by change of the tunnels.
func (s *scaled) configured() ([]int, error) {
	files, err := filepath.Glob(filepath.Join(s.node.Dir, "log", "veild*.log"))
	if err != nil {
		return nil, err
	}
	var out []int
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			return nil, err
		}
		for line := range strings.Lines(string(b)) {
			if _, rest, ok := strings.Cut(line, "configured="); ok && strings.Contains(line, "tunnels changed") {
				n, err := strconv.Atoi(strings.Fields(rest)[0])
				if err != nil {
					return nil, fmt.Errorf("log line %q: %w", line, err)
				}
				out = append(out, n)
			}
		}
	}
	return out, nil
}

// fills takes all peers and routes from the node and lets a new veild put them back in one turn.
func (s *scaled) fills(ctx context.Context) error {
	var millis []float64
	for round := range min(3, s.rounds) {
		if err := s.node.Program("veild").Term(ctx); err != nil {
			return fmt.Errorf("end veild: %w", err)
		}
		if err := s.empty(ctx); err != nil {
			return err
		}
		start := time.Now()
		if _, err := s.node.StartProgram(ctx, "veild"); err != nil {
			return err
		}
		if err := s.waitPeers(ctx, s.nodes); err != nil {
			return err
		}
		wall := time.Since(start)
		if err := s.quiet(ctx); err != nil {
			return err
		}
		took, err := s.longestTurn(ctx)
		if err != nil {
			return err
		}
		millis = append(millis, took)
		s.say("round %d  %d peers: %.0f ms in all turns; %.0f ms from the start of veild's process", round+1, s.nodes, took, wall.Seconds()*1000)
	}
	s.gate(bench.Below(labels[caseFill], s.one(caseFill, bench.Millisecond, millis...), 1000))
	return nil
}

// longestTurn is an upper bound of it: the time of all turns of this veild, milliseconds.
func (s *scaled) longestTurn(ctx context.Context) (float64, error) {
	t, err := s.turns(ctx)
	return 1000 * t.seconds, err
}

// empty takes all peers from the device and all routes into it.
func (s *scaled) empty(ctx context.Context) error {
	keys, err := s.peers(ctx)
	if err != nil {
		return err
	}
	args := []string{"set", oursDevice}
	for _, k := range keys {
		args = append(args, "peer", k, "remove")
	}
	if _, err := s.node.Exec(ctx, "wg", args...); err != nil {
		return err
	}
	for _, table := range []string{"main", fmt.Sprint(config.TablePod)} {
		if err := s.node.IP(ctx, "route flush table "+table+" dev "+oursDevice); err != nil {
			return err
		}
	}
	return nil
}
