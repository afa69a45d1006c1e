package storage

import (
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kubeveil/kubeveil/csi/crypt/dmcrypt"
	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/bench"
	"github.com/kubeveil/kubeveil/pkg/bench/suite"
)

func TestMain(m *testing.M) { os.Exit(nettest.Run(m)) }

func usual(t *testing.T) RunConfig {
	return RunConfig{Choice: suite.Choice{Rounds: 5, Parts: Parts()}, Sample: 3 * time.Second,
		Room: 1 << 30, Tuning: dmcrypt.Throughput, Dir: t.TempDir()}
}

// A result with invented values for all disks has every case that the gates need, and its report
// can be written.
func TestEveryGateIsMeasured(t *testing.T) {
	for _, platform := range []string{bench.Emulated, bench.VM} {
		s := &run{RunConfig: usual(t), Run: &suite.Run{Result: &bench.Result{
			Schema: bench.Schema, Platform: platform, Kernel: "6.1", CPUs: 2,
			Started: time.Unix(1, 0)}}}
		s.disks = newDisks(s.RunConfig)
		s.Result.Cases = append(madeUp(t, s.disks), stageCases(t)...)
		var err error
		if s.Result.Gates, err = bench.Judge(s.Result, Suite); err != nil {
			t.Fatal(err)
		}
		if len(s.Result.Gates) < 10 {
			t.Errorf("%s: %d gates", platform, len(s.Result.Gates))
		}

		for _, g := range s.Result.Missed() {
			t.Errorf("%s: %s: %s", platform, g.Name, g.Got)
		}

		errtest.Check(t, s.Result.Validate())
		var md strings.Builder
		rep := s.Report()
		rep.Result, rep.Labels = s.Result, labels()
		errtest.Check(t, rep.Markdown(&md))

		for _, c := range s.Result.Cases {
			if _, ok := rep.Labels[c.Name]; !ok {
				t.Errorf("case %s has no label", c.Name)
			}
		}
	}
}

func madeUp(t *testing.T, disks []*sideDisk) []bench.Case {
	t.Helper()
	var out []bench.Case
	for _, d := range disks {
		for _, task := range tasks() {
			r := &taskRun{task: task, disk: d, values: map[figure]map[string][]float64{}}
			for _, q := range task.quantities {
				for _, side := range []string{sideOurs, sidePlain, sideCrypt} {
					for range 3 {
						r.keep(figure{q.job, "", q.unit}, side, 99+rand.Float64())
					}
				}
			}
			cases, err := r.cases()
			errtest.Must(t, err)
			out = append(out, cases...)
		}
	}
	return out
}

func stageCases(t *testing.T) []bench.Case {
	t.Helper()
	var out []bench.Case
	for _, name := range []string{caseNew, caseExisting} {
		c, err := bench.NewCase(name, 0, bench.Millisecond, []float64{400}, []float64{900}, sideCrypt)
		errtest.Must(t, err)
		out = append(out, c)
	}
	return out
}

// Each task has one job per quantity, and each job fits into a side's part of the disk.
func TestTasks(t *testing.T) {
	o := usual(t)
	seen := map[string]bool{}
	for _, task := range tasks() {
		jobs := task.jobs(o, "/dev/x", o.Room)
		if len(jobs) != len(task.quantities) {
			t.Fatalf("%s: %d jobs, %d quantities", task.name, len(jobs), len(task.quantities))
		}
		for i, j := range jobs {
			if j.Name != task.quantities[i].job || seen[j.Name] {
				t.Errorf("%s: job %s for quantity %s, or twice", task.name, j.Name,
					task.quantities[i].job)
			}
			seen[j.Name] = true
			if end := j.Offset + j.Size; end > o.Room || j.Size < mib {
				t.Errorf("%s: ends at %d of %d", j.Name, end, o.Room)
			}
		}
	}
	for _, want := range []string{"kubestr_write_bw", "randread_4k", "randwrite_1024k",
		"randwrite_qd1"} {
		if !seen[want] {
			t.Errorf("no %s among %v", want, slices.Sorted(maps.Keys(seen)))
		}
	}
}

// alike accepts tables that differ only in length, key and device, and refuses all others.
func TestAlike(t *testing.T) {
	const ours = "0 2097152 crypt aes-xts-plain64 :64:logon:kubeveil:1 0 254:1 8192 2 " +
		"sector_size:4096 submit_from_crypt_cpus\n"
	const stock = "0 2101248 crypt aes-xts-plain64 :64:logon:cryptsetup:2-d0 0 254:3 8192 2 " +
		"submit_from_crypt_cpus sector_size:4096\n"
	errtest.Check(t, alike(ours+stock))
	for name, tables := range map[string]string{
		"one":       ours,
		"no flags":  ours + strings.Replace(stock, " 2 submit_from_crypt_cpus", " 1", 1),
		"sectors":   ours + strings.Replace(stock, ":4096", ":512", 1),
		"cipher":    ours + strings.Replace(stock, "xts", "cbc", 1),
		"offset":    ours + strings.Replace(stock, "8192", "32768", 1),
		"not crypt": ours + "0 2097152 linear 254:2 8192\n",
		"no answer": "",
		"cut off":   ours + stock[:40],
		"three":     ours + stock + stock,
	} {
		if alike(tables) == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// The values of an incomplete round are left out, and the values of earlier rounds are kept.
func TestCutShort(t *testing.T) {
	q := quantity{"a", bench.IOPS, "a"}
	r := &taskRun{task: task{name: "a", quantities: []quantity{q}}, disk: &sideDisk{name: free},
		values: map[figure]map[string][]float64{}}
	if cases, err := r.cases(); err != nil || len(cases) != 0 {
		t.Errorf("nothing measured: %v, %v", cases, err)
	}
	f := figure{"a", "", bench.IOPS}
	for _, side := range []string{sideOurs, sidePlain, sideCrypt, sideOurs, sideCrypt} {
		r.keep(f, side, 100)
	}
	if cases, err := r.cases(); err != nil || len(cases) != 2 || cases[0].Ours.N != 1 {
		t.Errorf("%+v, %v", cases, err)
	}
}

// Figures that are compared with cryptsetup on the disk without limits are measured freeTurns times
// per round, and that disk is filled before.
func TestTheFreeDisk(t *testing.T) {
	o := usual(t)
	for _, d := range newDisks(o) {
		if (d.IOPS == 0) != (d.name == free) {
			t.Errorf("%s: %d IOPS", d.name, d.IOPS)
		}
		if line := d.fill(); strings.Count(line, "oflag=direct") != sides ||
			!strings.Contains(line, d.Device(sides)) {
			t.Errorf("%s: %s", d.name, line)
		}
		for _, task := range tasks() {
			if want := d.name == free && task.everywhere &&
				task.name != "kubestr"; (task.turns(d.name) == freeTurns) != want {
				t.Errorf("%s, %s: %d turns", d.name, task.name, task.turns(d.name))
			}
		}
	}
}

func TestParseRun(t *testing.T) {
	const json = `{"jobs":[{"jobname":"a","read":{"total_ios":1,"iops":5}}]}`
	before, after := "cpu 100 0 100 9 9 0 0 0 0 0", "cpu 150 0 150 9 9 0 0 0 0 0"
	measured, busy, err := parseRun([]byte(before + "\n" + json + "\n" + after + "\n"))
	if err != nil || busy != time.Second || len(measured) != 1 || measured[0].Sum().IOPS != 5 {
		t.Errorf("%+v, %v, %v", measured, busy, err)
	}
	for _, bad := range []string{"", before, before + "\n" + after,
		json + "\n" + json + "\n" + after} {
		if _, _, err := parseRun([]byte(bad)); err == nil {
			t.Errorf("%q: no error", bad)
		}
	}
}

func FuzzParseRun(f *testing.F) {
	f.Add([]byte("cpu 1 2 3 4 5 6 7 8\n{\"jobs\":[{}]}\ncpu 1 2 3 4 5 6 7 8"))
	f.Fuzz(func(_ *testing.T, b []byte) { _, _, _ = parseRun(b) })
}
