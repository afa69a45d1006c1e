package guard

import (
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/internal/nflog"
	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/guard/chains"
)

// Packets that the tables drop are sent to nflog with the reason, the links and the headers.
func TestDropsOfTheTablesAreSampled(t *testing.T) {
	n := newNode(t, clsact)
	var log *nflog.Conn
	n.Run(t, func() (err error) {
		if err := chains.SampleProbe().Try(); err != nil {
			return err
		}
		log, err = nflog.Open(abi.NFLogGuard, chains.SampleBytes)
		return err
	})
	defer log.Close()
	n.cable(t, "u1", "198.19.1.1/24", "198.19.1.2/24", "fd42:a::1/64", "fd42:a::2/64")
	u1 := n.Link("u1").Attrs().Index

	for _, f := range []struct{ inRange, route, via string }{
		{"198.18.5.5", "198.18.5.0/24", "198.19.1.2"}, {"fd42:1::5", "fd42:1::/64", "fd42:a::2"},
	} {
		nettest.AddRoute(t, n.NS, netip.MustParsePrefix(f.route), netip.MustParseAddr(f.via), "u1")
		n.loses(t, f.inRange, "dst_in_range", n, f.inRange, 0)
		n.loses(t, f.inRange+" of a pod", "pod_to_range", n, f.inRange, abi.PodMark)
		for _, reason := range []string{"dst_in_range", "pod_to_range"} {
			p := nextSample(t, log, reason, netip.MustParseAddr(f.inRange))
			if p.In != 0 || p.Out != u1 || p.Hook != unix.NF_INET_POST_ROUTING ||
				p.Proto != unix.IPPROTO_UDP || p.DstPort != 7777 {
				t.Errorf("%s: %+v, want a datagram out of link %d", reason, p, u1)
			}
		}
	}
}

// nextSample waits for a sample of a reason to an address.
func nextSample(t *testing.T, log *nflog.Conn, reason string, to netip.Addr) nflog.Packet {
	t.Helper()
	end := time.AfterFunc(patience, func() { log.Close() })
	defer end.Stop()
	for {
		packets, err := log.Receive()
		if err != nil {
			t.Fatalf("no sample of %s to %s: %v", reason, to, err)
		}
		for _, p := range packets {
			if p.Prefix == reason && p.Dst == to {
				return p
			}
		}
	}
}

// A kernel without nflog has a guard that counts and drops.
func TestGuardWithoutSamples(t *testing.T) {
	n := newNode(t, clsact)
	pod := n.addPod(t)
	n.g.unsampled = true
	if ops := n.apply(t); len(ops) == 0 {
		t.Error("the tables are as before")
	}
	n.Run(t, admit)
	if ops := n.apply(t); len(ops) != 0 {
		t.Errorf("second Apply did %v", ops)
	}
	n.forge(t, pod, "pod_spoofed_source")
}
