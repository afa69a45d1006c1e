package flow

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/pkg/sysctl"
	"github.com/kubeveil/kubeveil/pkg/telemetry"
)

// many is the number of connections of a large table.
const many = 200_000

// BenchmarkLargeTable measures the page of a node with 200,000 connections with different ends. It
// fails if a page takes more than two seconds of CPU, or the process more than 64 MiB.
func BenchmarkLargeTable(b *testing.B) {
	const mostCPU, mostMemory = 2 * time.Second, 64.0
	n := newNode(b)
	size, err := sysctl.ReadNumber("netfilter/nf_conntrack_max")
	if err != nil || size < many+1000 {
		b.Fatalf("the table of connections has room for %d (%v): raise nf_conntrack_max", size, err)
	}
	for i := range 10_000 { // A cluster of 5,000 nodes.
		n.guard.Ranges = append(n.guard.Ranges,
			netip.PrefixFrom(netip.AddrFrom4([4]byte{100, byte(i >> 8), byte(i), 0}), 24))
	}
	for begin := 0; begin < many; begin += 10_000 {
		var ends []string
		for i := begin; i < begin+10_000; i++ {
			ends = append(ends, fmt.Sprintf("203.0.%d.%d:%d 192.0.2.1:80", i>>8&255, i&255, 1+i>>16))
		}
		n.track(ends...)
	}

	for b.Loop() {
		runtime.GC()
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		began, used := time.Now(), cpuTime(b)
		answer, err := n.ask("")
		took, worked := time.Since(began), cpuTime(b)-used
		if err != nil || answer.Count[telemetry.FlowOutside] != many {
			b.Fatalf("%v: %v", err, answer.Count)
		}
		runtime.ReadMemStats(&after)
		text, err := json.Marshal(answer)
		errtest.Must(b, err)
		b.ReportMetric(took.Seconds(), "s/page")
		b.ReportMetric(worked.Seconds(), "cpu-s/page")
		b.ReportMetric(float64(after.TotalAlloc-before.TotalAlloc)/(1<<20), "MiB-allocated/page")
		memory := float64(after.Sys-after.HeapReleased) / (1 << 20)
		b.ReportMetric(memory, "MiB-process")
		if worked > mostCPU || memory > mostMemory {
			b.Errorf("a page takes %v of CPU, want %v at most; the process %.1f MiB, want %.0f at most",
				worked, mostCPU, memory, mostMemory)
		}
		b.ReportMetric(float64(len(text))/(1<<20), "MiB-answer")
	}
}

// cpuTime returns the CPU time of this process, in user space and in the kernel.
func cpuTime(b *testing.B) time.Duration {
	b.Helper()
	var u unix.Rusage
	errtest.Must(b, unix.Getrusage(unix.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
