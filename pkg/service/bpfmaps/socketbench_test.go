package bpfmaps

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/service"
	"github.com/kubeveil/kubeveil/pkg/service/planner"
)

// BenchmarkSockets reports the run time of the programs at UDP sockets per run, as the kernel
// measures it (BPF_STATS_RUN_TIME): sockets that connect to a service one after the other, a socket
// that connects again and again, and datagrams of one unconnected socket. It reports the medians of
// the rounds.
func BenchmarkSockets(b *testing.B) {
	stats, err := ebpf.EnableStats(uint32(unix.BPF_STATS_RUN_TIME))
	errtest.Must(b, err)
	defer stats.Close()

	for _, endpoints := range []int{2, 100, 8000} {
		b.Run(fmt.Sprint(endpoints, " endpoints"), func(b *testing.B) {
			cgroup := nettest.NewCgroup(b)
			n := start(b, benchConfig(b), func(p *planner.Planner) {
				services, lists := many(1, endpoints, service.UDP)
				p.PutService(services[0])
				p.PutSlice(lists[0])
			})
			n.attach(b, cgroup)
			h := newHands(b, cgroup)
			// The kernel takes all addresses of a prefix of lo for its own.
			nettest.AddAddr(b, h.ns, "lo", netip.MustParsePrefix("198.18.0.1/18"))

			took := map[string][]float64{}
			for range b.N {
				for _, o := range []order{{Do: "sockets", Count: 2000}, {Do: "connects", Count: 2000},
					{Do: "send", Count: 20_000}} {
					o.To = "198.19.0.0:80"
					for name, ns := range runTimes(b, n, func() {
						if r := h.do(o); r.Err != "" {
							b.Fatal(r.Err)
						}
					}) {
						took[o.Do+"-"+name] = append(took[o.Do+"-"+name], ns)
					}
				}
			}
			for name, all := range took {
				slices.Sort(all)
				b.ReportMetric(all[len(all)/2], "ns/"+name)
			}
		})
	}
}

// runTimes returns the nanoseconds per run of each program at sockets that ran while fn did, keyed
// by name.
func runTimes(b *testing.B, n node, fn func()) map[string]float64 {
	before := map[string]*ebpf.ProgramStats{}
	for _, h := range n.hooks {
		s, err := n.Program(h.program).Stats()
		errtest.Must(b, err)
		before[h.program] = s
	}
	fn()
	took := map[string]float64{}
	for _, h := range n.hooks {
		s, err := n.Program(h.program).Stats()
		errtest.Must(b, err)
		was := before[h.program]
		if runs := s.RunCount - was.RunCount; runs > 0 {
			took[h.program] = float64(s.Runtime-was.Runtime) / float64(runs)
		}
	}
	return took
}

// BenchmarkAbortUDP searches a thousand connected UDP sockets, none of which is stale.
func BenchmarkAbortUDP(b *testing.B) {
	cgroup := nettest.NewCgroup(b)
	n := start(b, config(b), lab)
	n.attach(b, cgroup)
	h := newHands(b, cgroup)
	for range 1000 {
		h.dial("udp", "198.18.0.1:53")
	}
	b.ReportAllocs()
	for b.Loop() {
		if aborted, err := n.AbortUDP(h.ns.Path()); err != nil || aborted != 0 {
			b.Fatalf("%d sockets, %v", aborted, err)
		}
	}
}
