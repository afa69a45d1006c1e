package storage

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/kubeveil/kubeveil/e2e/disk/fio"
	"github.com/kubeveil/kubeveil/pkg/bench"
	"github.com/kubeveil/kubeveil/pkg/bench/load"
)

// Suffixes of cases.
const (
	toCrypt   = "_to_cryptsetup"
	cpuSuffix = "_cpu"
	p99Suffix = "_p99"
)

// figure identifies one figure of a task. It is a case without the side with which it is compared.
type figure struct {
	name, suffix string
	unit         bench.Unit
}

// taskRun is a task on a disk with its measured values.
type taskRun struct {
	task
	disk *sideDisk
	// values holds one value per turn of each round, keyed by figure and side. The sides of one
	// turn are measured directly after one another.
	values map[figure]map[string][]float64
}

// group returns the run as a group for the runner, which determines the order. The figures are
// stored in r, because one run of fio returns several.
func (s *run) group(r *taskRun) bench.Group {
	g := bench.Group{Name: r.disk.name + ", " + r.name, Unit: r.quantities[0].unit,
		Turns: r.turns(r.disk.name)}
	for _, side := range []string{sideOurs, sidePlain, sideCrypt} {
		g.Sides = append(g.Sides, bench.Side{Name: side,
			Measure: func(ctx context.Context) (bench.Sample, error) {
				return s.measure(ctx, r, side)
			}})
	}
	return g
}

// measure runs the task on a side's device and adds the figures to r. Its sample is the first
// figure.
func (s *run) measure(ctx context.Context, r *taskRun, side string) (bench.Sample, error) {
	const stat = "head -n 1 /proc/stat\n"
	jobs := r.jobs(s.RunConfig, r.disk.deviceBySide[side], r.disk.room)
	out, err := s.machine.Exec(ctx, stat+fio.Command(jobs)+stat)
	if err != nil {
		return bench.Sample{}, err
	}
	measured, busy, err := parseRun(out)
	if err != nil {
		return bench.Sample{}, err
	}
	if len(measured) != len(r.quantities) {
		return bench.Sample{}, fmt.Errorf("%d jobs measured, want %d", len(measured),
			len(r.quantities))
	}

	var bytes int64
	for i, q := range r.quantities {
		m := measured[i]
		if m.Name != q.job || m.Errors != 0 {
			return bench.Sample{}, fmt.Errorf("job %s: fio reports job %s, %d errors", q.job,
				m.Name, m.Errors)
		}
		v := q.value(m)
		if v <= 0 {
			return bench.Sample{}, fmt.Errorf("job %s: fio measured nothing", q.job)
		}
		r.keep(figure{q.job, "", q.unit}, side, v)
		if q.unit == bench.Millisecond {
			r.keep(figure{q.job, p99Suffix, q.unit}, side, float64(m.Sum().P99.Microseconds())/1000)
		}
		bytes += m.Sum().Bytes
	}

	if r.cpu {
		r.keep(figure{r.name, cpuSuffix, bench.CoreSecondsPerGB}, side,
			busy.Seconds()/(float64(bytes)/1e9))
	}
	return bench.Sample{Value: r.quantities[0].value(measured[0])}, nil
}

func (r *taskRun) keep(f figure, side string, v float64) {
	if r.values[f] == nil {
		r.values[f] = map[string][]float64{}
	}
	r.values[f][side] = append(r.values[f][side], v)
}

// parseRun parses the output of the shell commands of measure: the first line of /proc/stat, fio's
// JSON, and the first line of /proc/stat again. busy is the CPU time in between.
func parseRun(out []byte) (measured []fio.Measured, busy time.Duration, err error) {
	out = bytes.TrimSpace(out)
	first, last := bytes.IndexByte(out, '\n'), bytes.LastIndexByte(out, '\n')
	if first < 0 || first == last {
		return nil, 0, errors.New("a run of fio printed less than three lines")
	}
	before, err := load.ParseBusy(string(out[:first]))
	if err != nil {
		return nil, 0, err
	}
	after, err := load.ParseBusy(string(out[last+1:]))
	if err != nil {
		return nil, 0, err
	}
	measured, err = fio.Parse(out[first+1 : last])
	return measured, after - before, err
}

// whole returns the number of turns in which all sides were measured.
func (r *taskRun) whole() int {
	first := figure{r.quantities[0].job, "", r.quantities[0].unit}
	n := len(r.values[first][sideOurs])
	for _, side := range []string{sidePlain, sideCrypt} {
		n = min(n, len(r.values[first][side]))
	}
	return n
}

// cases returns the cases of a run. Each figure is compared with the plain mapping and with
// cryptsetup.
func (r *taskRun) cases() ([]bench.Case, error) {
	var out []bench.Case
	whole := r.whole()
	for _, q := range r.quantities {
		for _, f := range []figure{{q.job, "", q.unit}, {q.job, p99Suffix, q.unit},
			{q.job, cpuSuffix, bench.CoreSecondsPerGB}} {
			if whole == 0 || r.values[f] == nil {
				continue
			}
			for _, against := range []struct{ side, suffix string }{{sidePlain, ""},
				{sideCrypt, toCrypt}} {
				c, err := bench.NewCase(r.disk.name+"_"+f.name+against.suffix+f.suffix, 0, f.unit,
					r.values[f][sideOurs][:whole], r.values[f][against.side][:whole], against.side)
				if err != nil {
					return nil, err
				}
				out = append(out, c)
			}
		}
	}
	return out, nil
}
