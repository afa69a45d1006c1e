package hostnet

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/abi"
)

// reflecting returns dual with reflected marks.
func reflecting() Want {
	w := dual()
	w.ReflectMarks = true
	return w
}

// assertReflects compares both settings.
func (l *lab) assertReflects(when, inet, inet6 string) {
	l.t.Helper()
	for path, want := range map[string]string{reflect4Path: inet, reflect6Path: inet6} {
		if got := nettest.ReadSysctl(l.t, l.ns, path); got != want {
			l.t.Errorf("%s: %s = %s, want %s", when, path, got, want)
		}
	}
}

func (l *lab) remove() {
	l.t.Helper()
	l.ns.Run(l.t, func() error {
		_, err := l.host.Remove()
		return err
	})
}

func TestReflectedMarksArePutBack(t *testing.T) {
	ours := fmt.Sprint(reflectOurs)
	for name, tt := range map[string]struct {
		inet, inet6 string // as they were
		want        Want
		set4, set6  string
	}{
		"off before":           {"0", "0", reflecting(), ours, ours},
		"on before":            {"1", "1", reflecting(), "1", "1"},
		"one on before":        {"0", "1", reflecting(), ours, "1"},
		"of a cluster of IPv4": {"0", "0", only(reflecting(), false), ours, "0"},
		"of a cluster of IPv6": {"0", "0", only(reflecting(), true), "0", ours},
		"not wanted":           {"0", "1", dual(), "0", "1"},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLab(t)
			was := func() {
				nettest.Sysctl(t, l.ns, reflect4Path, tt.inet)
				nettest.Sysctl(t, l.ns, reflect6Path, tt.inet6)
			}
			was()

			for _, back := range []struct {
				name string
				do   func()
			}{
				{"not wanted any more", func() { l.sync(dual()) }},
				{"not wanted by the next veild", func() { l.host.Forget(); l.sync(dual()) }},
				{"removed", l.remove},
			} {
				l.sync(tt.want)
				l.assertReflects("applied", tt.set4, tt.set6)
				if ops := l.sync(tt.want); len(ops) > 0 {
					t.Errorf("the second sync did %s", ops)
				}
				l.host.Forget()
				if ops := l.sync(tt.want); len(ops) > 0 {
					t.Errorf("a sync that reads did %s", ops)
				}
				back.do()
				l.assertReflects(back.name, tt.inet, tt.inet6)
			}
		})
	}
}

// If an operator sets the value while ours is in force, the operator's value stays.
func TestReflectedMarksOfAnOperatorStay(t *testing.T) {
	l := newLab(t)
	l.apply(reflecting())
	nettest.Sysctl(t, l.ns, reflect4Path, "1")
	nettest.Sysctl(t, l.ns, reflect6Path, "0")
	l.apply(reflecting())
	l.assertReflects("set by hand, and applied", "1", fmt.Sprint(reflectOurs))
	l.remove()
	l.assertReflects("removed", "1", "0")
}

// TestKernelAnswersByTheMark makes the kernel refuse a connection whose packets are marked. nft
// marks packets that come in, like the programs at links, and counts packets that go out with a
// mark.
//
//	router ─► SYN, marked ─► node: no such port ─► RST, marked if it is reflected
func TestKernelAnswersByTheMark(t *testing.T) {
	nettest.NeedProgram(t, "nft")
	l := newLab(t)
	l.shell(fmt.Sprintf(`
		nft add table inet marker
		nft add counter inet marker reflected
		nft add chain inet marker pre '{ type filter hook prerouting priority -300; }'
		nft add rule inet marker pre iifname under0 meta l4proto tcp meta mark set %[1]d
		nft add chain inet marker out '{ type filter hook output priority 0; }'
		nft add rule inet marker out meta l4proto tcp meta mark '&' %[1]d == %[1]d counter name reflected`,
		abi.PodMark|abi.ServiceMark))

	refuse := func(node netip.Addr) int {
		t.Helper()
		before := l.counted("reflected")
		l.router.Run(t, func() error {
			c, err := net.DialTimeout("tcp", netip.AddrPortFrom(node, 9).String(), 10*time.Second)
			if err == nil {
				c.Close()
				return fmt.Errorf("%s took the connection", node)
			}
			if !errors.Is(err, unix.ECONNREFUSED) {
				return err
			}
			return nil
		})
		return l.counted("reflected") - before
	}

	for _, step := range []struct {
		name string
		do   func()
		want int
	}{
		{"without", func() { l.apply(dual()) }, 0},
		{"with", func() { l.apply(reflecting()) }, 1},
		{"removed", l.remove, 0},
	} {
		step.do()
		for _, node := range dual().SelfAddrs {
			if got := refuse(node); got != step.want {
				t.Errorf("%s: %d marked answers from %s, want %d", step.name, got, node, step.want)
			}
		}
	}
}

// counted reads a counter of the table marker.
func (l *lab) counted(name string) (n int) {
	l.t.Helper()
	out := l.ns.Exec(l.t, "nft", "list", "counter", "inet", "marker", name)
	_, after, _ := strings.Cut(out, "packets ")
	if _, err := fmt.Sscan(after, &n); err != nil {
		l.t.Fatalf("counter %s: %v: %s", name, err, out)
	}
	return n
}

// TestWhereAnswersGo has a node with another address, on a link before the link of its own address.
// Without a preferred source the kernel replies from the first address that it finds; peers drop
// that, because it is not in the node's allowed IPs.
func TestWhereAnswersGo(t *testing.T) {
	const answer = abi.PodMark | abi.ServiceMark
	l := newLab(t)
	nettest.AddAddr(t, l.ns, "lo", prefixes("198.18.0.200/32", "fd42:0:0:1::200/128")...)
	l.apply(reflecting())
	l.assertIs(reflecting())
	l.assertClosed(closed(reflecting()), "reflecting")
	l.assertOuter(closed(reflecting()), "reflecting")
	l.apply(dual())
	l.assertIs(dual())
	if hop, err := nettest.Lookup(l.h, netip.MustParseAddr("198.18.130.9"), answer); err != nil ||
		hop.Source.String() != "198.18.0.200" {
		t.Errorf("without a preference an answer goes %s: %v, want it from the first address", hop,
			err)
	}

	l.apply(reflecting())
	for _, tt := range []struct{ name, to, want, source string }{
		{"a peer's pod", "198.18.130.9", "veil0", "198.18.0.1"},
		{"a peer's pod, ipv6", "fd42:aaaa:0:2::9", "veil0", "fd42:0:0:1::1"},
		{"a peer", "198.18.0.2", "veil0", "198.18.0.1"},
		{"a peer, ipv6", "fd42:0:0:1::2", "veil0", "fd42:0:0:1::1"},
		{"a node without a key", "198.18.0.4", "", ""},
		{"a node without a key, ipv6", "fd42:0:0:1::4", "", ""},
		{"an unassigned pod address", "198.18.200.9", "", ""},
		{"an unassigned pod address, ipv6", "fd42:aaaa:0:99::9", "", ""},
		{"a client outside", "198.18.5.5", "under0", "198.18.0.1"},
		{"a client outside, ipv6", "fd42:9::1", "under0", "fd42:0:0:1::1"},
	} {
		hop, err := nettest.Lookup(l.h, netip.MustParseAddr(tt.to), answer)
		errtest.Must(t, err)
		if hop.Unreachable != (tt.want == "") || hop.Device != tt.want && !hop.Unreachable ||
			!hop.Unreachable && hop.Source.String() != tt.source {
			t.Errorf("%s: an answer goes %s, want %q from %q", tt.name, hop, tt.want, tt.source)
		}
	}
}

func TestDiffOfReflectedMarks(t *testing.T) {
	for name, tt := range map[string]struct {
		have, want int
		ops        []string
	}{
		"on":                         {0, reflectOurs, []string{"set ipv4/fwmark_reflect to 118"}},
		"on already":                 {reflectOurs, reflectOurs, nil},
		"off":                        {reflectOurs, 0, []string{"set ipv4/fwmark_reflect to 0"}},
		"off already":                {0, 0, nil},
		"on, and somebody's already": {1, reflectOurs, nil},
		"off, and somebody's":        {1, 0, nil},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			for _, op := range Diff(State{Reflect4: tt.have}, State{Reflect4: tt.want}) {
				got = append(got, op.String())
			}
			if diff := cmp.Diff(tt.ops, got); diff != "" {
				t.Errorf("ops (-want +got):\n%s", diff)
			}
		})
	}
}
