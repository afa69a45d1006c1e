package engine

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kubeveil/kubeveil/internal/poll"
	"github.com/kubeveil/kubeveil/pkg/bench"
	"github.com/kubeveil/kubeveil/pkg/bench/report"
	"github.com/kubeveil/kubeveil/pkg/worker"
)

const (
	// upgradeStream is the rate of the TCP stream beside the datagrams, in bits per second.
	upgradeStream = 1_000_000_000
	// upgradeWindow is the minimum duration of the measurement of an upgrade and of its control.
	upgradeWindow = time.Second
	// settled is the time after which simultaneous handshakes have ended.
	settled = time.Second
	// youngest is shorter than the age at which WireGuard renews a session (Rekey-After-Time,
	// 120 s). In a run that is shorter than youngest, each new handshake is caused by an upgrade.
	youngest = 110 * time.Second
)

// noHandover is the name of the control of upgrades in results.
const noHandover = "no handover"

// window holds the results of a load during an upgrade, or during its control.
type window struct {
	took  time.Duration
	pause time.Duration // the longest one-way time of a datagram, in either direction
	rate  float64       // of the stream, Mbit/s
}

// upgrades upgrades the devices of both nodes in turn under a continuous load.
type upgrades struct {
	w           *world
	there, back *steady // the load from pod a to pod b, and back
	up, control []window
	handshakes  int
	last        [2]string // time of the last handshake of each node
}

// upgrades measures upgrades at all MTUs.
func (s *run) upgrades(ctx context.Context) error {
	return s.eachMTU(ctx, func(ctx context.Context, mtu int) error {
		cases, tables, err := s.measureUpgrades(ctx, mtu)
		s.keep(cases...)
		s.tables = append(s.tables, tables...)
		return err
	})
}

// measureUpgrades measures upgrades at an MTU. Each is followed by its control: the same load for
// the same time without an upgrade.
func (s *run) measureUpgrades(ctx context.Context, mtu int) ([]bench.Case, []report.Table, error) {
	w, err := build(ctx, side{name: sides[0].name, file: "u", engine: sides[0].engine}, mtu, s.dir)
	defer w.close()
	if err != nil {
		return nil, nil, err
	}
	u := &upgrades{w: w}
	defer u.end()
	began := time.Now()
	if err := u.begin(ctx); err != nil {
		return nil, nil, err
	}

	for n := range s.Upgrades {
		if err := u.one(ctx, n%2); err != nil {
			return nil, nil, fmt.Errorf("upgrade %d at MTU %d: %w", n+1, mtu, err)
		}
		a, b := u.up[n], u.control[n]
		s.Progress("mtu %d: upgrade %d/%d: pause %s, without a handover %s; stream %s", mtu, n+1,
			s.Upgrades, a.pause, b.pause, bench.Mbps.Format(a.rate))
	}

	sent := u.there.count() + u.back.count()
	lost := u.end()
	if u.handshakes > 0 && time.Since(began) > youngest {
		return nil, nil, fmt.Errorf("upgrades at MTU %d took %s: after %s sessions are renewed by "+
			"age; request fewer upgrades", mtu, time.Since(began).Round(time.Second), youngest)
	}
	s.Progress("mtu %d: %d of %d datagrams were lost, %d new handshakes", mtu, lost, sent,
		u.handshakes)
	cases, err := u.cases(mtu, lost)
	if err != nil {
		return nil, nil, err
	}
	still, phases, err := u.phases(mtu)
	return append(cases, still...), phases, err
}

// begin waits until both directions have a session, and then starts the load. Datagrams that wait
// for the first session therefore do not count.
func (u *upgrades) begin(ctx context.Context) (err error) {
	for _, way := range []struct {
		load     **steady
		from, to int
		bits     int
	}{{&u.there, podA, podB, upgradeStream}, {&u.back, podB, podA, 0}} {
		first, err := u.w.steadyLoad(ctx, way.from, way.to, 0)
		if err != nil {
			return err
		}
		for end := time.Now().Add(30 * time.Second); first.longest(first.began) == 0; {
			if err := poll.Pause(ctx, 10*time.Millisecond); err != nil || time.Now().After(end) {
				first.lost()
				return errors.Join(err, errors.New("no datagram arrives"))
			}
		}
		first.lost()
		if *way.load, err = u.w.steadyLoad(ctx, way.from, way.to, way.bits); err != nil {
			return err
		}
	}

	// Both nodes initiate a handshake at the start. The second handshake may end after the first
	// datagrams have arrived.
	if err := poll.Pause(ctx, settled); err != nil {
		return err
	}
	for i := range u.last {
		if u.last[i], err = u.w.handshake(i); err != nil {
			return err
		}
	}
	return nil
}

// end ends the load and returns the number of lost datagrams. A second call returns 0.
func (u *upgrades) end() (lost int) {
	for _, s := range []**steady{&u.there, &u.back} {
		if *s != nil {
			lost += (*s).lost()
			*s = nil
		}
	}
	return lost
}

// one measures an upgrade of a node, and then the control.
func (u *upgrades) one(ctx context.Context, node int) error {
	up, err := u.window(ctx, upgradeWindow, func() error { return u.w.upgrade(node, "") })
	if err != nil {
		return err
	}
	for i := range u.last {
		now, err := u.w.handshake(i)
		if err != nil {
			return err
		}
		if now != u.last[i] {
			u.handshakes++
		}
		u.last[i] = now
	}
	control, err := u.window(ctx, up.took, func() error { return nil })
	u.up, u.control = append(u.up, up), append(u.control, control)
	return err
}

// window calls do under the load and measures the load from then for at least least.
func (u *upgrades) window(ctx context.Context, least time.Duration, do func() error) (window,
	error) {
	from, before := time.Now(), u.there.carried.Load()
	if err := do(); err != nil {
		return window{}, err
	}
	if err := poll.Pause(ctx, least-time.Since(from)); err != nil {
		return window{}, err
	}

	to, bytes := time.Now(), u.there.carried.Load()-before
	out := window{took: to.Sub(from), rate: float64(bytes) * 8 / 1e6 / to.Sub(from).Seconds()}
	for _, s := range []*steady{u.there, u.back} {
		s.settle(to)
		longest, _ := s.window(from, to)
		out.pause = max(out.pause, longest)
	}
	return out, nil
}

// cases returns the results of the load as cases.
func (u *upgrades) cases(mtu, lost int) ([]bench.Case, error) {
	milliseconds := func(d time.Duration) float64 { return float64(d) / 1e6 }
	var pause, still, above, rate, free []float64
	for i, up := range u.up {
		control := u.control[i]
		pause = append(pause, milliseconds(up.pause))
		still = append(still, milliseconds(control.pause))
		// Results have no negative figures, so 0 means that the control's pause was longer.
		above = append(above, milliseconds(max(up.pause-control.pause, 0)))
		rate, free = append(rate, up.rate), append(free, control.rate)
	}

	out := []bench.Case{
		{Name: "upgrade_lost", MTU: mtu, Unit: bench.Count,
			Ours: bench.Summarize([]float64{float64(lost)})},
		{Name: "upgrade_handshakes", MTU: mtu, Unit: bench.Count,
			Ours: bench.Summarize([]float64{float64(u.handshakes)})},
		{Name: "upgrade_pause_above_control", MTU: mtu, Unit: bench.Millisecond,
			Ours: bench.Summarize(above)},
	}
	p, err := bench.NewCase("upgrade_pause", mtu, bench.Millisecond, pause, still, noHandover)
	if err != nil {
		return nil, err
	}
	r, err := bench.NewCase("upgrade_stream", mtu, bench.Mbps, rate, free, noHandover)
	return append(out, p, r), err
}

// stepsLine is the prefix of the log line with the times of the steps of a handover.
const stepsLine = "handover steps:"

// phases returns a case of the times during which the device did not forward, and a table of the
// steps of that time.
func (u *upgrades) phases(mtu int) ([]bench.Case, []report.Table, error) {
	var at [2]map[string][]time.Duration
	for i := range at {
		var err error
		if at[i], err = readSteps(filepath.Join(u.w.dir, strconv.Itoa(i), "log")); err != nil {
			return nil, nil, err
		}
	}

	between := func(from, to string) (out []float64, err error) {
		for i := range at {
			a, b := at[i][from], at[i][to]
			if len(a) != len(b) {
				return nil, fmt.Errorf("node %d: %d times %q and %d times %q", i, len(a), from,
					len(b), to)
			}
			for k := range a {
				out = append(out, float64(b[k]-a[k])/1e6)
			}
		}
		return out, nil
	}

	table := report.Table{Title: fmt.Sprintf("Where the time of a handover goes, MTU %d", mtu),
		Note: "From the moment at which the device gets the signal to stand still to the " +
			"successor's start. Medians need not add up.",
		Head: []string{"step", "median", "least", "most"}}
	var all bench.Stat
	for _, p := range []struct{ name, from, to string }{
		{"the old process stops its threads and writes what changed", worker.StepFilled,
			worker.StepExported},
		{"that is on its way", worker.StepExported, worker.StepReceived},
		{"the successor reads it", worker.StepReceived, worker.StepImported},
		{"\"taken\" is on its way", worker.StepImported, worker.StepTaken},
		{"\"go\" is on its way", worker.StepTaken, worker.StepGo},
		{"the successor starts its threads", worker.StepGo, worker.StepStarted},
		{"all", worker.StepFilled, worker.StepStarted},
	} {
		took, err := between(p.from, p.to)
		if err != nil {
			return nil, nil, err
		}
		all = bench.Summarize(took)
		row := []string{p.name}
		for _, v := range []float64{all.Median, all.Min, all.Max} {
			row = append(row, bench.Millisecond.Format(v))
		}
		table.Rows = append(table.Rows, row)
	}
	return []bench.Case{{Name: "upgrade_stood_still", MTU: mtu, Unit: bench.Millisecond, Ours: all}},
		[]report.Table{table}, nil
}

// readSteps returns the times of each step in the log of a node, as times since boot in ascending
// order, keyed by the name of the step.
func readSteps(path string) (map[string][]time.Duration, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	out := map[string][]time.Duration{}
	in := bufio.NewScanner(f)
	for in.Scan() {
		rest, ok := strings.CutPrefix(in.Text(), stepsLine)
		if !ok {
			continue
		}
		for field := range strings.FieldsSeq(rest) {
			name, text, _ := strings.Cut(field, "=")
			n, err := strconv.ParseInt(text, 10, 64)
			if err != nil {
				return nil, fmt.Errorf("%s: step %q: %w", path, field, err)
			}
			out[name] = append(out[name], time.Duration(n))
		}
	}
	for _, times := range out {
		slices.Sort(times)
	}
	return out, in.Err()
}
