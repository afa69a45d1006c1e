package drop

import (
	"net"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/guard/chains"
)

// cpu returns the CPU time of the process or the calling thread. who is as in getrusage(2).
func cpu(who int) (time.Duration, error) {
	var r unix.Rusage
	err := unix.Getrusage(who, &r)
	return time.Duration(r.Utime.Nano() + r.Stime.Nano()), err
}

// flood sends datagrams from a pod to the node for the time lasts. It returns the number of
// datagrams and the CPU time. The calling thread must be in the pod's network namespace.
func flood(lasts time.Duration) (sent int, took time.Duration, err error) {
	before, err := cpu(unix.RUSAGE_THREAD)
	if err != nil {
		return 0, 0, err
	}
	c, err := net.DialUDP("udp4", nil, &net.UDPAddr{IP: net.IPv4(198, 18, 1, 1), Port: 7777})
	if err != nil {
		return 0, 0, err
	}
	defer c.Close()

	for began := time.Now(); time.Since(began) < lasts; {
		for range 1000 {
			if _, err := c.Write([]byte("kubeveil")); err != nil {
				return sent, 0, err
			}
			sent++
		}
	}
	after, err := cpu(unix.RUSAGE_THREAD)
	return sent, after - before, err
}

// One core sends forged packets as fast as it can. All are counted, few are sampled, and the others
// count as skipped.
func TestFloodIsCountedAndSampledWithinItsLimits(t *testing.T) {
	n := newNode(t)
	scanner := n.addPod("scanner", 1)
	send(t, scanner, 1, 1) // It learns a neighbour.
	nettest.Until(t, patience, "a first sample", func() bool { return len(n.forged("")) > 0 })

	before, err := cpu(unix.RUSAGE_SELF)
	if err != nil {
		t.Fatal(err)
	}
	const lasts = time.Second
	var sent int
	var sender time.Duration
	scanner.Run(t, func() (err error) {
		sent, sender, err = flood(lasts)
		return err
	})
	after, err := cpu(unix.RUSAGE_SELF)
	if err != nil {
		t.Fatal(err)
	}

	var dropped, skipped uint64
	nettest.Until(t, patience, "the count", func() bool {
		counts, err := n.f.counts()
		if err != nil {
			t.Fatal(err)
		}
		dropped, skipped = counts.dropped[chains.Spoofed], n.f.tally.skipped(counts)[chains.Spoofed]
		return uint64(len(n.forged("")))+skipped == dropped
	})
	samples := len(n.forged(""))
	t.Logf("%d packets sent in %v, %d dropped, %d samples; %v of CPU time beside the sender's %v",
		sent, lasts, dropped, samples, after-before-sender, sender)
	if samples > 200 || dropped < uint64(sent)/2 {
		t.Errorf("%d samples of %d packets, of which %d were dropped", samples, sent, dropped)
	}
}
