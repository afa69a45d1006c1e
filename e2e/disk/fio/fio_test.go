package fio

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/kubeveil/kubeveil/internal/nettest"
)

func TestMain(m *testing.M) { os.Exit(nettest.Run(m)) }

// said is a shortened output of fio 3.33.
const said = `fio: a line of its own
{"fio version" : "fio-3.33", "jobs" : [{"jobname" : "a", "error" : 0, "total_err" : 0,
"read" : {"io_bytes" : 40960, "bw_bytes" : 4096, "iops" : 1.0, "total_ios" : 10, "clat_ns" : {"percentile" : {"50.000000" : 2000, "99.000000" : 9000}}},
"write" : {"io_bytes" : 4096, "bw_bytes" : 409, "iops" : 0.1, "total_ios" : 1, "clat_ns" : {"min" : 0}}}]}`

func TestParse(t *testing.T) {
	jobs, err := Parse([]byte(said))
	if err != nil || len(jobs) != 1 {
		t.Fatalf("%v, %v", jobs, err)
	}
	want := Direction{Ops: 11, Bytes: 45056, IOPS: 1.1, Rate: 4505, P50: 2 * time.Microsecond,
		P99: 9 * time.Microsecond}
	if got := jobs[0].Sum(); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	for name, text := range map[string]string{
		"nothing": "", "no job": "{}", "cut off": said[:100],
		"a failed job": strings.Replace(said, `"error" : 0`, `"error" : 5`, 1),
	} {
		if _, err := Parse([]byte(text)); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func TestText(t *testing.T) {
	got := Command([]Job{{Name: "a", File: "/dev/x", Size: 1 << 20, Block: "4k",
		ReadWrite: "randread", Depth: 64, Runtime: 15 * time.Second, Ramp: 2 * time.Second,
		Extra: []string{"gtod_reduce=1"}}})
	for _, want := range []string{"direct=1\n", "[a]\nfilename=/dev/x\n", "size=1048576\n",
		"iodepth=64\n", "runtime=15\nramp_time=2\ngtod_reduce=1\nJOBS\n"} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in %s", want, got)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(said))
	f.Fuzz(func(t *testing.T, b []byte) {
		if jobs, err := Parse(b); err == nil && len(jobs) == 0 {
			t.Error("neither jobs nor an error")
		}
	})
}
