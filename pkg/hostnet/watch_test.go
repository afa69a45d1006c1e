package hostnet

import (
	"context"
	"os/exec"
	"testing"
	"time"

	"github.com/kubeveil/kubeveil/pkg/config"
	"github.com/kubeveil/kubeveil/pkg/nettest"
)

func TestWatchTellsOfChangesByOthers(t *testing.T) {
	l := newLab(t)
	l.apply(dual())
	ctx, cancel := context.WithCancel(t.Context())
	var changes <-chan struct{}
	l.ns.Run(t, func() (err error) {
		changes, err = Watch(ctx, time.Millisecond)
		return err
	})
	told := func() bool {
		select {
		case _, ok := <-changes:
			return ok
		case <-time.After(5 * time.Second):
			return false
		}
	}
	// drain until the kernel has nothing more to tell of what went before.
	drain := func() {
		for {
			select {
			case <-changes:
			case <-time.After(300 * time.Millisecond):
				return
			}
		}
	}
	for _, tt := range []struct {
		name, command string
		want          bool
	}{
		{"a tunnel route deleted", "ip route del 198.18.130.0/24 table 30309", true},
		{"a closing route deleted, ipv6", "ip -6 route del unreachable fd42:aaaa::/32 table 30309", true},
		{"a rule deleted", "ip rule del pref 100", true},
		{"a rule deleted, ipv6", "ip -6 rule del pref 91", true},
		{"underlay mtu", "ip link set under0 mtu 1400", true},
		{"an address gone", "ip addr del 198.18.0.1/24 dev under0", true},
		{"our nft table deleted", "nft delete table inet kubeveil_nat", true},
		{"the table of outer packets deleted", "nft delete table inet kubeveil_outer", true},
		{"the table of pods made", "nft add table inet kubeveil_pods; nft add set inet kubeveil_pods pods4 '{ type ifname . ipv4_addr; }'", true},
		{"a pod's address", "nft add element inet kubeveil_pods pods4 '{ vpod0 . 198.18.129.5 }'", false},
		{"a pod's address flushed", "nft flush set inet kubeveil_pods pods4", true},
		{"another nft table", "nft add table inet other", false},
		{"a pod's host route", "ip route add 198.18.129.5/32 dev veil1 table 30309 proto 119", false},
		{"a pod's host route flushed", "ip route flush table 30309 proto 119", true},
	} {
		drain()
		l.ns.Run(t, func() error { return exec.Command("sh", "-ec", tt.command).Run() })
		if tt.want && !told() {
			t.Errorf("%s: not told", tt.name)
		}
		if !tt.want {
			select {
			case <-changes:
				t.Errorf("%s: told", tt.name)
			case <-time.After(100 * time.Millisecond):
			}
		}
	}
	cancel()
	for range changes { // Ends when it is closed.
	}
}

func TestWatchOutlivesAnOverrun(t *testing.T) {
	l := newLab(t)
	var changes <-chan struct{}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	l.ns.Run(t, func() (err error) {
		changes, err = Watch(ctx, time.Millisecond)
		return err
	})
	w := manyPeers(300)
	for range 3 {
		l.apply(w)
		l.ns.Run(t, func() error { _, err := l.host.Remove(); return err })
	}
	nettest.Until(t, 5*time.Second, "told of changes", func() bool {
		select {
		case _, ok := <-changes:
			return ok
		default:
			return false
		}
	})
	cancel()
	for range changes {
	}
}

func FuzzConcerns(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte{28, 0, 0, 0, 24, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 32, 0, 0, 0, config.RouteProtoPod, 0, 0, 0, 0, 0, 0})
	f.Add([]byte{255, 255, 255, 255, 24, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0})
	f.Add(append([]byte{40, 0, 0, 0, 0, 10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}, config.NFTNatTable+"\x00           "...))
	f.Fuzz(func(t *testing.T, b []byte) {
		concernsRouting(b)
		concernsNFT(b)
	})
}
