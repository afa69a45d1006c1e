package hostnet

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/hostnet/watch"
)

// watched is a lab whose changes are watched.
type watched struct {
	*lab
	changes <-chan watch.Change
	stop    context.CancelFunc
}

func watchLab(t *testing.T, l *lab) watched {
	ctx, cancel := context.WithCancel(t.Context())
	w := watched{lab: l, stop: cancel}
	l.ns.Run(t, func() (err error) {
		w.changes, err = watch.Start(ctx, time.Millisecond, time.Minute)
		return err
	})
	t.Cleanup(func() {
		cancel()
		for range w.changes { // Ends when it is closed.
		}
	})
	return w
}

// told calls do and returns all notifications that follow, merged. The longer do takes, the longer
// it waits.
func (w watched) told(t *testing.T, do func() error) watch.Change {
	t.Helper()
	began := time.Now()
	w.ns.Run(t, do)
	return w.until(t, max(300*time.Millisecond, 5*time.Since(began)))
}

// until returns all notifications, merged, until none has arrived for the time quiet.
func (w watched) until(t *testing.T, quiet time.Duration) watch.Change {
	t.Helper()
	var all watch.Change
	for {
		select {
		case c, open := <-w.changes:
			if !open {
				t.Fatal("the subscription broke")
			}
			all.Add(c)
		case <-time.After(quiet):
			return all
		}
	}
}

// settled is longer than the time until the kernel has finished with a new link: its carrier is up,
// and duplicate address detection has ended.
const settled = 3 * time.Second

func command(text string) func() error {
	return func() error { return nettest.Command("sh", "-ec", text) }
}

// summary returns what a turn would read for a change.
func (w watched) summary(c watch.Change) string {
	s := ""
	for what, is := range map[string]bool{
		"u": c.Underlay, "r": c.Routing ||
			w.host.Differs(c), "g": c.Guard, "l": c.PodLinks, "a": c.AllPods,
		"p": c.Policy, "f": c.Filters,
	} {
		if is {
			s += what
		}
	}
	b := []byte(s)
	slices.Sort(b)
	for _, name := range c.Pods {
		b = append(b, " "+name...)
	}
	return string(b)
}

// Flushing a table of policies is reported like deleting it; the changes of single policies are
// not.
func TestWatchTellsOfPoliciesThatAreGone(t *testing.T) {
	l := newLab(t)
	w := watchLab(t, l)
	const judges, stamp = "inet " + abi.NFTPolicyTable, "inet " + abi.NFTStampTable
	w.until(t, settled)
	for _, tt := range []struct{ name, command, want string }{
		{"made", "nft add table " + judges + "; nft add chain " + judges + " egress; nft add chain " +
			judges + " post '{ type filter hook postrouting priority 95; }'; nft add rule " +
			judges + " post jump egress; nft add rule " + judges + " egress drop; nft add table " +
			stamp + "; nft add chain " + stamp + " check_post; nft add rule " + stamp +
			" check_post drop", ""},
		{"groups changed", "nft flush chain " + judges + " egress; nft add rule " + judges +
			" egress accept", ""},
		{"dormant", "nft add table " + judges + " '{ flags dormant; }'", "p"},
		{"awake", "nft add table " + judges + " '{ }'", ""},
		{"stamp dormant", "nft add table " + stamp + " '{ flags dormant; }'", "p"},
		{"flushed", "nft flush table " + judges, "p"},
		{"deleted", "nft delete table " + judges, "p"},
		{"stamp flushed", "nft flush table " + stamp, "p"},
		{"stamp deleted", "nft delete table " + stamp, "p"},
	} {
		if got := w.summary(w.told(t, command(tt.command))); got != tt.want {
			t.Errorf("%s: told %q, want %q", tt.name, got, tt.want)
		}
	}
}

func TestWatchTellsWhatOthersChanged(t *testing.T) {
	l := newLab(t)
	w := watchLab(t, l)
	l.sync(dual())
	w.told(t, command("nft add table inet kubeveil_pods; nft add set inet kubeveil_pods pods4 '{ "+
		"type ifname . ipv4_addr; }'"))
	w.until(t, settled)

	const vpod = "vpod0123456789a"
	for _, tt := range []struct{ name, command, want string }{
		{"a tunnel route deleted", "ip route del 198.18.130.0/24 table 30309", "r"},
		{"a closing route deleted, ipv6", "ip -6 route del unreachable fd42:aaaa::/32 table 30309",
			"r"},
		{"a tunnel route replaced by another's",
			"ip route replace 198.18.130.0/24 dev under0 metric 1024 proto static", "ru"},
		{"a rule deleted", "ip rule del pref 100", "ru"},
		{"a rule deleted, ipv6", "ip -6 rule del pref 91", "ru"},
		{"underlay mtu", "ip link set under0 mtu 1400", "u"},
		{"an address gone", "ip addr del 198.18.0.1/24 dev under0", "ru"},
		{"an address", "ip addr add 198.18.0.1/24 dev under0", "u"},
		{"a route of another", "ip route add 203.0.113.0/24 dev under0", "u"},
		{"a tunnel's mtu", "ip link set veil1 mtu 1300", "r"},
		{"a tunnel down", "ip link set veil1 down", "ru"},
		{"our nft table deleted", "nft delete table inet kubeveil_nat", "r"},
		{"the table of outer packets deleted", "nft delete table inet kubeveil_outer", "r"},
		{"the guard's table", "nft add table inet kubeveil_guard", "g"},
		{"another nft table",
			"nft add table inet other; nft add chain inet other c; nft add rule " +
				"inet other c drop; nft add set inet other s '{ type ipv4_addr; }'", "f"},
		{"another's policy", "nft add table ip filter; nft add chain ip filter f " +
			"'{ type filter hook forward priority 0; policy drop; }'", "f"},
		{"another's element", "nft add element inet other s '{ 192.0.2.1 }'", ""},
		{"another's rules flushed", "nft flush chain inet other c", "f"},
		{"another nft table, deleted", "nft delete table ip filter", "f"},
		{"another's table for ARP", "nft add table arp other", ""},
		{"a pod's link", "ip link add " + vpod +
			" group 30320 type veth peer name p0; ip link set p0 addrgenmode none", "l"},
		{"a pod's link is set up", "ip link set " + vpod + " up; ip link set p0 up", "u"},
		{"a pod's address", "nft add element inet kubeveil_pods pods4 '{ " + vpod +
			" . 198.18.129.5 }'", ""},
		{"a pod's address deleted", "nft delete element inet kubeveil_pods pods4 '{ " + vpod +
			" . 198.18.129.5 }'", " " + vpod},
		{"a pod's host route", "ip route add 198.18.129.5/32 dev " + vpod +
			" table 30309 proto 119", ""},
		{"a pod's host route flushed", "ip route flush table 30309 proto 119", " " + vpod},
		{"a pod's link in another group", "ip link set " + vpod + " group 0", "l " + vpod},
		{"a pod's link down", "ip link set " + vpod + " down", "u " + vpod},
		{"a pod's link gone, and its peer", "ip link del " + vpod, "lu"},
		{"the table of pods deleted", "nft delete table inet kubeveil_pods", "ag"},
		{"a link of another", "ip link add other type veth peer name other1", ""},
	} {
		if got := w.summary(w.told(t, command(tt.command))); got != tt.want {
			t.Errorf("%s: told %q, want %q", tt.name, got, tt.want)
		}
	}
}

// The kernel also sends notifications about writes of Sync. They do not cause a turn.
func TestOwnWritesDoNotCountAsChanges(t *testing.T) {
	l := newLab(t)
	w := watchLab(t, l)
	want := manyPeers(50)
	w.told(t, func() error { _, err := l.host.Sync(Plan(want)); return err })
	w.until(t, settled)
	want.Peers = slices.Delete(want.Peers, 7, 9)
	want.Peers[3].MTU = 1290
	want.Devices[0].MTU = 1400
	ops := 0
	c := w.told(t, func() error {
		done, err := l.host.Sync(Plan(want))
		ops = len(done)
		return err
	})
	if ops == 0 || len(c.Routes) == 0 {
		t.Fatalf("%d ops, %d messages about routes: nothing was tested", ops, len(c.Routes))
	}

	if got := w.summary(c); got != "" {
		t.Errorf("own writes are told as %q", got)
	}

	// One of them removed by another program, and put back.
	const route = "198.18.128.0/28 dev veil0 table 30309 metric 1024 proto 118"
	if got := w.summary(w.told(t, command("ip route del "+route))); got != "r" {
		t.Errorf("a route that was taken away is told as %q, want r", got)
	}

	if got := w.summary(w.told(t, command("ip route add "+route))); got != "" {
		t.Errorf("a route that was put back is told as %q", got)
	}
}

func TestWatchOutlivesAnOverrun(t *testing.T) {
	l := newLab(t)
	w := watchLab(t, l)
	many := manyPeers(300)
	for range 3 {
		l.apply(many)
		l.ns.Run(t, func() error { _, err := l.host.Remove(); return err })
	}
	nettest.Until(t, 5*time.Second, "told of changes", func() bool {
		select {
		case _, ok := <-w.changes:
			return ok
		default:
			return false
		}
	})
}
