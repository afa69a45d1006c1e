package bpf

import (
	"slices"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/errtest"
)

// step is a packet of a connection from outside to a pod of this node, and the program that gets
// it.
type step struct {
	name, prog  string
	proto       byte
	flags       byte
	mark        uint32
	fromBackend bool
	translated  bool // it was already translated, or it comes from the backend
	times       int  // how often it is sent
}

// connectionSteps are the packets of a connection, and of a flow of UDP, in their order.
var connectionSteps = []step{
	{"syn-in", "service_in", unix.IPPROTO_TCP, tcpSYN, 0, false, false, 1},
	{"syn-out", "service_pod_out", unix.IPPROTO_TCP, tcpSYN, servedMark, false, true, 1},
	{"synack-in", "service_pod_in", unix.IPPROTO_TCP, tcpSYN | tcpACK, 0, true, true, 1},
	{"synack-out", "service_out", unix.IPPROTO_TCP, tcpSYN | tcpACK, servedMark, true, true, 1},
	{"ack-in", "service_in", unix.IPPROTO_TCP, tcpACK, 0, false, false, 1},
	{"ack-out", "service_pod_out", unix.IPPROTO_TCP, tcpACK, servedMark, false, true, 1},
	{"data-in", "service_in", unix.IPPROTO_TCP, tcpACK, 0, false, false, 4},
	{"data-out", "service_pod_out", unix.IPPROTO_TCP, tcpACK, servedMark, false, true, 4},
	{"reply-in", "service_pod_in", unix.IPPROTO_TCP, tcpACK, 0, true, true, 4},
	{"reply-out", "service_out", unix.IPPROTO_TCP, tcpACK, servedMark, true, true, 4},
	{"fin-in", "service_in", unix.IPPROTO_TCP, tcpFIN | tcpACK, 0, false, false, 1},
	{"udp-in", "service_in", unix.IPPROTO_UDP, 0, 0, false, false, 1},
	{"udp-more-in", "service_in", unix.IPPROTO_UDP, 0, 0, false, false, 4},
	{"udp-reply-out", "service_out", unix.IPPROTO_UDP, 0, servedMark, true, true, 4},
}

// BenchmarkConnections reports the run time of the programs per packet of connections from outside
// to a pod of this node, as the kernel measures it (BPF_STATS_RUN_TIME). Each round has a thousand
// connections, whose packets take turns. It reports the medians of the rounds.
func BenchmarkConnections(b *testing.B) {
	coll := servedBy(b, packetsWith(b, 1<<17))
	stats, err := ebpf.EnableStats(uint32(unix.BPF_STATS_RUN_TIME))
	errtest.Must(b, err)
	defer stats.Close()

	took := make(map[string][]float64)
	for range b.N {
		for _, s := range connectionSteps {
			took[s.name] = append(took[s.name], s.run(b, coll))
		}
		forget(b, coll)
	}

	for _, s := range connectionSteps {
		slices.Sort(took[s.name])
		b.ReportMetric(took[s.name][len(took[s.name])/2], "ns/"+s.name)
	}
}

// run sends the packet of a thousand connections and returns the time per packet in nanoseconds.
func (s step) run(b *testing.B, coll *ebpf.Collection) float64 {
	const many, firstPort = 1000, 10_000
	a := labAddrs[0]
	to := at(a.node, 30080)
	switch {
	case s.proto == unix.IPPROTO_UDP && s.translated:
		to = at(a.pod1, 5353)
	case s.proto == unix.IPPROTO_UDP:
		to = at(a.node, 30081)
	case s.translated:
		to = at(a.pod1, 8080)
	}

	prog, link := program(b, coll, s.prog), linksFor(b, coll)
	send := func() error {
		for i := range uint16(many) {
			from, dst := at(a.client, firstPort+i), to
			if s.fromBackend {
				from, dst = dst, from
			}
			opts := ebpf.RunOptions{Data: segment(from, dst, s.proto, s.flags, ""),
				Context: skb{Mark: s.mark}}
			if s.prog == "service_pod_in" {
				opts.Context = skb{Mark: s.mark, Ifindex: link.own}
			}
			for range s.times {
				if _, err := prog.Run(&opts); err != nil {
					return err
				}
			}
		}
		return nil
	}

	before, err := prog.Stats()
	errtest.Must(b, err)
	errtest.Must(b, link.ns.Do(send))
	after, err := prog.Stats()
	errtest.Must(b, err)
	return float64(after.Runtime-before.Runtime) / float64(after.RunCount-before.RunCount)
}
