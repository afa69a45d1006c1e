package nftables_test

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/internal/nfnl"
	"github.com/kubeveil/kubeveil/internal/nl"
	"github.com/kubeveil/kubeveil/pkg/policy"
	"github.com/kubeveil/kubeveil/pkg/policy/policytest"
)

// If conntrack is full, the kernel drops packets of unknown connections before a rule judges them
// (nf_conntrack_in in nf_conntrack_core.c). Known connections continue.
func TestFullConntrackLetsNothingNewPass(t *testing.T) {
	l, p := two(t)
	l.apply(p.Plan())
	l.arrive(append(unjudged(l), to(l, 2, 80)...), true) // the control
	known := [2]*stream{connect(l, 0), connect(l, 1)}

	began := time.Now()
	filled := l.fillConntrack()
	t.Logf("%d connections fill conntrack, after %v", filled,
		time.Since(began).Round(time.Millisecond))
	before := l.conntrackDrops()
	lost := append(unjudged(l), to(l, 3, 80)...)
	l.arrive(lost, false)
	if n := l.conntrackDrops() - before; n < uint64(len(lost)) {
		t.Errorf("the kernel dropped %d packets since conntrack is full, want at least %d", n,
			len(lost))
	}
	for _, s := range known {
		if !s.echoes(10 * time.Second) {
			t.Error("a known connection does not go on")
		}
		s.Close()
	}

	l.node.Run(t, nettest.ForgetConnections)
	l.arrive(unjudged(l), true)
	l.arrive(to(l, 3, 80), false)
}

// fillConntrack adds connections that the kernel does not evict until conntrack is full, and
// returns their number. The limit is for all network namespaces together, but each namespace has
// its own count.
func (l *lab) fillConntrack() (added int) {
	l.t.Helper()
	const batch, most = 1024, 2 << 20
	full := false
	l.node.Run(l.t, func() error {
		c, err := nfnl.Open()
		if err != nil {
			return err
		}
		defer c.Close()
		for ; added < most; added += batch {
			var opened []nl.Opened
			for i := added; i < added+batch; i++ {
				opened = append(opened, nl.Opened{
					Client: netip.AddrPortFrom(netip.AddrFrom4([4]byte{198, 18, 100, byte(i >> 15)}),
						uint16(i)|0x8000),
					Server: netip.MustParseAddrPort("198.18.101.1:80")})
			}
			if err := nl.TrackOpened(c, opened); err != nil {
				if full = errors.Is(err, unix.ENOMEM); full {
					return nil
				}
				return err
			}
		}
		return nil
	})
	if !full {
		nettest.Skip(l.t, nettest.NoKernelFeature, "net.nf_conntrack_max is too large to fill")
	}
	return added
}

// conntrackDrops returns the number of packets that the node's conntrack dropped for lack of room
// (/proc/net/stat/nf_conntrack: one line per CPU, with hexadecimal columns).
func (l *lab) conntrackDrops() (n uint64) {
	l.t.Helper()
	l.node.Run(l.t, func() error {
		text, err := os.ReadFile("/proc/thread-self/net/stat/nf_conntrack")
		if err != nil {
			return err
		}
		lines := strings.Split(strings.TrimSpace(string(text)), "\n")
		column := -1
		for i, name := range strings.Fields(lines[0]) {
			if name == "drop" {
				column = i
			}
		}
		for _, line := range lines[1:] {
			count, err := strconv.ParseUint(strings.Fields(line)[column], 16, 64)
			if err != nil {
				return err
			}
			n += count
		}
		return nil
	})
	return n
}

// Each packet that conntrack does not track (ct state untracked or invalid) is judged like a first
// packet, because it does not match ct state established.
func TestUntrackedPacketsAreJudged(t *testing.T) {
	nft := nettest.NeedProgram(t, "nft")
	l, p := two(t)
	l.apply(p.Plan())
	for _, line := range []string{
		"add table inet others",
		"add counter inet others untracked",
		"add counter inet others invalid",
		"add chain inet others early { type filter hook prerouting priority -300; }",
		"add rule inet others early tcp dport 80 notrack",
		"add rule inet others early tcp dport 81 notrack",
		"add chain inet others late { type filter hook postrouting priority 90; }",
		"add rule inet others late ct state untracked counter name untracked",
		"add rule inet others late ct state invalid counter name invalid",
	} {
		l.run(l.node, nft, line)
	}
	for range 2 {
		l.arrive(to(l, 2, 80), true)
		l.arrive(append(to(l, 2, 81), to(l, 3, 80)...), false)
	}
	if n := l.counted("untracked"); n < 12 {
		t.Errorf("%d packets were untracked, want 12: the test shows nothing", n)
	}

	// The length in the UDP header exceeds the packet (udp_error of nf_conntrack_proto_udp.c).
	for _, i := range []int{2, 3} {
		for f := range 2 {
			frame := packet(policy.Flow{Src: policytest.PodAddrs(i)[f],
				Dst: policytest.PodAddrs(1)[f], Proto: policy.UDP, Port: 80}, l.id)
			l.id++
			binary.BigEndian.PutUint16(frame[len(frame)-payloadLen-4:], 1400)
			l.pods[i].Run(t, func() error { return nettest.SendFrames("eth0", frame) })
		}
	}
	first := l.id - 4
	nettest.Until(t, expectation, "four invalid packets", func() bool {
		return l.counted("invalid") >= 4
	})
	l.arrive(to(l, 2, 80), true) // Earlier packets have arrived by then, or never will.
	for i, arrived := range l.arrived(first, int(l.id-first))[:4] {
		if arrived {
			t.Errorf("packet %d arrived, which conntrack calls invalid and no policy allows", i)
		}
	}
}

// payloadLen is the length of a packet's tag and number.
const payloadLen = len(tag) + 8

// counted returns the packets of a counter of the table others.
func (l *lab) counted(name string) (n int) {
	l.t.Helper()
	text := l.output(nettest.NeedProgram(l.t, "nft"), "list counter inet others "+name)
	_, text, _ = strings.Cut(text, "packets ")
	n, err := strconv.Atoi(strings.Fields(text)[0])
	errtest.Must(l.t, err)
	return n
}
