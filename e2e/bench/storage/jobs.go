package storage

import (
	"fmt"
	"time"

	"github.com/kubeveil/kubeveil/e2e/disk/fio"
	"github.com/kubeveil/kubeveil/pkg/bench"
)

// limits lists the disks: two with published limits of cloud disks, in IOPS and bytes per second,
// and one without limits.
var limits = []struct {
	name      string
	title     string
	iops      int64
	bandwidth int64
}{
	{"cap_2400", "2400 IOPS, 112 MB/s", 2400, 112e6},
	{"cap_500", "500 IOPS, 60 MB/s", 500, 60e6},
	{"free", "no limit", 0, 0},
}

// free is the name of the disk without limits.
const free = "free"

// quantity is a figure of a fio job that becomes a case.
type quantity struct {
	// job is the name of the fio job, and of the case.
	job  string
	unit bench.Unit
	// title is the title of the case in reports.
	title string
}

// value returns the figure of m in the quantity's unit, or 0 if fio did not measure it.
func (q quantity) value(m fio.Measured) float64 {
	d := m.Sum()
	switch q.unit {
	case bench.IOPS:
		return d.IOPS
	case bench.Mbps:
		return d.Rate * 8 / 1e6
	}
	return float64(d.P50.Microseconds()) / 1000
}

// task is one run of fio: jobs that run at the same time, with one quantity each.
type task struct {
	name string
	// everywhere reports whether the task runs on all disks. Otherwise it runs only on the disk
	// without limits.
	everywhere bool
	// cpu reports whether CPU time is measured. It is not in tasks with a ramp, because the bytes
	// of the ramp do not count but its CPU time would.
	cpu        bool
	quantities []quantity
	// jobs returns the jobs for a device with room bytes.
	jobs func(o RunConfig, device string, room int64) []fio.Job
}

// freeTurns is the number of measurements of each side per round on the disk without limits, for
// figures that are compared with cryptsetup there. More turns reduce the influence of other work of
// the machine.
const freeTurns = 2

// turns returns the number of measurements of each side of the task per round on a disk.
func (t task) turns(disk string) int {
	if disk == free && t.everywhere && t.cpu {
		return freeTurns
	}
	return 1
}

const (
	mib = 1 << 20
	// rampShare is the ratio of a kubestr job's time to its ramp, about 15 s to 2 s.
	rampShare = 7
)

// kubestr returns the default jobs of kastenhq/kubestr (pkg/fio/fio_jobs.go): four jobs at the same
// time, without latencies (gtod_reduce).
func kubestr(o RunConfig, device string, room int64) []fio.Job {
	var jobs []fio.Job
	size := room / 4 / mib * mib
	for i, j := range []struct{ name, block, rw string }{
		{"read_iops", "4k", "randread"}, {"write_iops", "4k", "randwrite"},
		{"read_bw", "128k", "randread"}, {"write_bw", "128k", "randwrite"},
	} {
		jobs = append(jobs, fio.Job{
			Name: "kubestr_" + j.name, File: device, Offset: int64(i) * size, Size: size,
			Block: j.block, Depth: 64, ReadWrite: j.rw,
			Runtime: o.Sample, Ramp: max(time.Second, o.Sample/rampShare),
			Extra: []string{"gtod_reduce=1"},
		})
	}
	return jobs
}

// words holds the texts for fio's names of reads and writes in titles.
var words = map[string]string{"randread": "random read", "randwrite": "random write"}

// serial returns a task with one job of Constellation's benchmark
// (.github/actions/e2e_benchmark/fio.ini), which has one submitter on one CPU. extra are further
// options of fio.
func serial(rw, block string, depth int, extra ...string) task {
	name := rw + "_" + block
	q := quantity{name, bench.IOPS, fmt.Sprintf("%s %s, queue of %d", block, words[rw], depth)}
	switch {
	case depth == 1:
		q.job, q.unit = rw+"_qd1", bench.Millisecond
	case block != "4k":
		q.unit = bench.Mbps
	}
	return task{
		name: q.job, everywhere: depth > 1, cpu: true, quantities: []quantity{q},
		jobs: func(o RunConfig, device string, room int64) []fio.Job {
			return []fio.Job{{Name: q.job, File: device, Size: room / mib * mib, Block: block,
				Depth: depth, ReadWrite: rw, Runtime: o.Sample, Extra: extra}}
		},
	}
}

// tasks returns all tasks in the order of the report.
func tasks() []task {
	all := []task{{
		name: "kubestr", everywhere: true, jobs: kubestr, quantities: []quantity{
			{"kubestr_read_iops", bench.IOPS, "kubestr, 4 jobs at once: 4k random read"},
			{"kubestr_write_iops", bench.IOPS, "kubestr, 4 jobs at once: 4k random write"},
			{"kubestr_read_bw", bench.Mbps, "kubestr, 4 jobs at once: 128k random read"},
			{"kubestr_write_bw", bench.Mbps, "kubestr, 4 jobs at once: 128k random write"},
		},
	}}
	for _, block := range []string{"4k", "1024k"} {
		for _, rw := range []string{"randread", "randwrite"} {
			all = append(all, serial(rw, block, 128, "thread=1", "cpus_allowed=0"))
		}
	}
	for _, rw := range []string{"randread", "randwrite"} {
		all = append(all, serial(rw, "4k", 1))
	}
	return all
}
