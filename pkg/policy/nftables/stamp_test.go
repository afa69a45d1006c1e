package nftables_test

import (
	"context"
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/kubeveil/kubeveil/bpf"
	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/policy"
	"github.com/kubeveil/kubeveil/pkg/policy/nftables"
	"github.com/kubeveil/kubeveil/pkg/policy/policytest"
)

// forged sets the bit of the stamp in every packet before it is judged, and counts packets that
// still have the bit afterwards.
const forged = `add table inet others
add chain inet others before { type filter hook prerouting priority 0; }
add rule inet others before meta mark set meta mark | 0x800000
add chain inet others late { type filter hook postrouting priority 90; }
add rule inet others late meta mark set meta mark | 0x800000
add chain inet others input { type filter hook input priority 0; }
add rule inet others input meta mark set meta mark | 0x800000
add counter inet others left
add chain inet others behind { type filter hook postrouting priority 500; }
add rule inet others behind meta mark & 0x800000 != 0 counter name left
add chain inet others inside { type filter hook input priority 500; }
add rule inet others inside meta mark & 0x800000 != 0 counter name left`

// Pods' packets do not pass without the table that judges, regardless of how another program
// changes that table while no daemon runs.
func TestUnjudgedPacketsAreDropped(t *testing.T) {
	nft := nettest.NeedProgram(t, "nft")
	for name, command := range map[string]string{
		"deleted":       "delete table inet " + abi.NFTPolicyTable,
		"table flushed": "flush table inet " + abi.NFTPolicyTable,
		"dormant":       "add table inet " + abi.NFTPolicyTable + " { flags dormant; }",
		"hooks flushed": "flush chain inet kubeveil_policy post; flush chain inet kubeveil_policy host",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // It waits for the kernel most of the time.
			l, p := two(t)
			l.apply(p.Plan())
			for line := range strings.Lines(forged) {
				l.run(l.node, nft, line)
			}
			known := [2]*stream{connect(l, 0), connect(l, 1)}
			l.arrive(unjudged(l), true) // the control
			l.wantNode(true)
			if dropped := l.unstamped(); dropped != 0 {
				t.Errorf("dropped %d packets that were judged", dropped)
			}

			l.run(l.node, nft, command)
			lost := append(unjudged(l), to(l, 3, 80)...)
			l.arrive(lost, false)
			l.wantNode(false)
			for _, s := range known {
				if s.echoes(patience) {
					t.Error("a known connection goes on")
				}
			}
			// This counts one more packet to the node, and one packet of each known connection.
			if dropped := l.unstamped(); dropped < uint64(len(lost)+3) {
				t.Errorf("counted %d packets, want at least %d", dropped, len(lost)+3)
			}

			l.table.Forget()
			l.apply(p.Plan())
			before := l.unstamped() // kept
			l.arrive(unjudged(l), true)
			l.arrive(to(l, 3, 80), false)
			l.wantNode(true)
			for _, s := range known {
				if !s.echoes(10 * time.Second) {
					t.Error("a known connection does not go on once the table is back")
				}
			}
			if dropped := l.unstamped(); dropped != before || before == 0 {
				t.Errorf("counted %d packets, then %d", before, dropped)
			}
			if list := l.output(nft, "list counter inet others left"); !strings.Contains(list,
				"packets 0 ") {
				t.Errorf("the stamp stays on packets: %s", list)
			}
		})
	}
}

// unjudged returns flows that the plan of two allows: to a pod of the node, to a pod of another
// node and back, in both families.
func unjudged(l *lab) []policy.Flow {
	flows := to(l, 2, 80)
	for f := range 2 {
		here, there := policytest.PodAddrs(3)[f], policytest.PodAddrs(5)[f]
		flows = append(flows,
			policy.Flow{Src: here, Dst: there, FromPod: true, Proto: policy.UDP, Port: 53},
			policy.Flow{Src: there, Dst: here, ToPod: true, Proto: policy.TCP, Port: 80})
	}
	return flows
}

// wantNode checks that a pod reaches its node, or does not, and that the node always reaches it.
func (l *lab) wantNode(want bool) {
	l.t.Helper()
	err := dial(l.pods[2], netip.MustParseAddr("169.254.1.1"), want)
	if err == nil || strings.Contains(err.Error(), "refused") != want {
		l.t.Errorf("pod to its node: %v, want it refused by the node: %t", err, want)
	}
	for _, a := range policytest.PodAddrs(2) {
		if err := dial(l.node, a, true); err == nil || !strings.Contains(err.Error(), "refused") {
			l.t.Errorf("node to its pod %s: %v, want it refused by the pod", a, err)
		}
	}
}

// unstamped returns how many packets were dropped because they were not judged.
func (l *lab) unstamped() (n uint64) {
	l.t.Helper()
	l.node.Run(l.t, func() error {
		drops, err := nftables.Drops()
		n = drops["policy_unstamped"]
		return err
	})
	return n
}

// stream is a known connection of pod 2 to an echo server in pod 1.
type stream struct{ net.Conn }

func connect(l *lab, family int) *stream {
	l.t.Helper()
	to := netip.AddrPortFrom(policytest.PodAddrs(1)[family], 80).String()
	s := &stream{}
	l.pods[1].Run(l.t, func() error {
		listener, err := (&net.ListenConfig{}).Listen(l.t.Context(), "tcp", to)
		if err != nil {
			return err
		}
		// Other tests need the port of this pod to be closed.
		context.AfterFunc(l.t.Context(), func() { listener.Close() })
		go func() {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			listener.Close()
			_, _ = io.Copy(c, c)
			c.Close()
		}()
		return nil
	})
	l.pods[2].Run(l.t, func() (err error) {
		s.Conn, err = net.DialTimeout("tcp", to, 5*time.Second)
		return err
	})
	l.t.Cleanup(func() { s.Close() })
	if !s.echoes(5 * time.Second) {
		l.t.Fatalf("%s does not echo", to)
	}
	return s
}

// echoes reports whether the echo arrives in time. Lost bytes arrive too, by retransmission.
func (s *stream) echoes(within time.Duration) bool {
	b := make([]byte, 1)
	_ = s.SetDeadline(time.Now().Add(within))
	if _, err := s.Write(b); err != nil {
		return false
	}
	_, err := s.Read(b)
	return err == nil
}

func TestEachDropHasAReason(t *testing.T) {
	l, p := two(t)
	l.apply(p.Plan())
	l.node.Run(t, func() error {
		drops, err := nftables.Drops()
		for _, r := range bpf.PolicyReasons {
			if _, ok := drops[r.Name]; !ok {
				t.Errorf("%s is not counted", r.Name)
			}
			delete(drops, r.Name)
		}
		if len(drops) > 0 {
			t.Errorf("counted without a reason: %v", drops)
		}
		return err
	})
}

// Deleting the policies takes both tables in one transaction.
func TestDeleteLeavesNothing(t *testing.T) {
	nft := nettest.NeedProgram(t, "nft")
	l, p := two(t)
	l.apply(p.Plan())
	l.run(l.node, nft, "delete table inet "+abi.NFTPolicyTable)
	l.node.Run(t, func() error {
		if remains, err := nftables.Remains(); err != nil || !remains {
			t.Errorf("remains %t, %v", remains, err)
		}
		if err := nftables.Delete(); err != nil {
			return err
		}
		if remains, err := nftables.Remains(); err != nil || remains {
			t.Errorf("remains %t, %v after Delete", remains, err)
		}
		return nil
	})
	l.arrive(to(l, 3, 80), true)
}
