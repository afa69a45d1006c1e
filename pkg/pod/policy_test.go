package pod

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/internal/nfnl"
	"github.com/kubeveil/kubeveil/internal/nl"
)

var web = Workload{Namespace: "shop", Name: "web-0", UID: "6b1f"}

// judged makes the node enforce policies, with the groups "one" and "two".
func (n *node) judged() {
	n.t.Helper()
	n.nft(`table inet kubeveil_policy {
		set m4_one { type ipv4_addr; }
		set m6_one { type ipv6_addr; }
		set m4_two { type ipv4_addr; }
		set m6_two { type ipv6_addr; }
		set self4 { type ipv4_addr . ipv4_addr; }
		set self6 { type ipv6_addr . ipv6_addr; }
		set other { type ipv4_addr; elements = { 198.18.1.5 } }
	}`)
	n.must(n.OpenPolicy)
}

func (n *node) nft(commands string) {
	n.t.Helper()
	n.must(func() error { return nftHere(n.t, commands) })
}

// nftHere is node.nft for a func that runs in the node already.
func nftHere(t *testing.T, commands string) error {
	t.Helper()
	return nettest.Feed(commands, nettest.NeedProgram(t, "nft"), "-f", "-")
}

// groups returns the sets that contain the addresses.
func (n *node) groups(addrs ...netip.Addr) (sets []string) {
	n.t.Helper()
	n.must(func() error {
		found, err := groupsOf(addrs)
		for _, m := range found {
			sets = append(sets, m.Set)
		}
		slices.Sort(sets)
		return err
	})
	return sets
}

var inOne = []string{"m4_one", "m6_one", "self4", "self6"}

func TestPodIsInItsGroupBeforeItsLinkIsUp(t *testing.T) {
	n := newNode(t)
	n.judged()
	n.must(func() error { return n.Reserve(map[Workload]string{web: "one"}) })
	r, ns := newRecord(t, "c1", pod4, pod6)
	r.Workload = web
	afterStep = func(name string) error {
		if name == "elements" {
			found, err := groupsOf(r.Addrs)
			if len(found) != len(inOne) {
				t.Errorf("before the link is up: in %v, %v", found, err)
			}
		}
		return nil
	}
	defer func() { afterStep = nil }()
	n.attach(r, ns)
	if got := n.groups(r.Addrs...); !slices.Equal(got, inOne) {
		t.Errorf("attached: in %v", got)
	}
	if loaded := n.load(r.HostLink); loaded.Workload != web {
		t.Errorf("record has %+v", loaded.Workload)
	}

	n.must(func() error { return n.Detach(r.HostLink) })
	if got := n.groups(r.Addrs...); len(got) != 0 {
		t.Errorf("detached: in %v", got)
	}
	errtest.Check(t, n.bare())
}

func (n *node) load(link string) (r Record) {
	n.t.Helper()
	n.must(func() (err error) {
		r, err = n.Load(link)
		return err
	})
	return r
}

// A pod without a reservation is attached, and in no group.
func TestPodWithoutAReservationIsMute(t *testing.T) {
	for name, prepare := range map[string]func(n *node) Workload{
		"none":       func(*node) Workload { return web },
		"not named":  func(*node) Workload { return Workload{} },
		"group gone": func(n *node) Workload { n.reserve("three"); return web },
		"another's": func(n *node) Workload {
			n.reserve("one")
			return Workload{Namespace: "evil", Name: web.Name, UID: web.UID}
		},
		"damaged": func(n *node) Workload {
			n.reserve("one")
			n.must(func() error {
				return os.WriteFile(filepath.Join(n.PolicyDir, web.file()), []byte("{"), 0o600)
			})
			return web
		},
		"removed again": func(n *node) Workload {
			n.reserve("one")
			n.must(func() error { return n.Reserve(nil) })
			return web
		},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			n.judged()
			r, ns := newRecord(t, "c1", pod4, pod6)
			r.Workload = prepare(n)
			n.attach(r, ns)
			if got := n.groups(r.Addrs...); len(got) != 0 {
				t.Errorf("in %v", got)
			}
			if len(n.elements()) != 2 {
				t.Errorf("the link has %v", n.elements())
			}
		})
	}
}

func (n *node) reserve(group string) {
	n.t.Helper()
	n.must(func() error { return n.Reserve(map[Workload]string{web: group}) })
}

// newReserved returns a node under policies that has reserved a group for web, and the record of
// that pod.
func newReserved(t *testing.T) (*node, Record, *nettest.NS) {
	t.Helper()
	n := newNode(t)
	n.judged()
	n.reserve("one")
	r, ns := newRecord(t, "c1", pod4, pod6)
	r.Workload = web
	return n, r, ns
}

func TestPodFollowsAChangedReservation(t *testing.T) {
	for name, tt := range map[string]struct {
		becomes []string // one after each transaction
		want    []string
	}{
		"once":   {[]string{"two"}, []string{"m4_two", "m6_two", "self4", "self6"}},
		"twice":  {[]string{"two", "one"}, inOne},
		"gone":   {[]string{"three"}, nil},
		"always": {[]string{"two", "one", "two", "one", "two", "one", "two"}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			n, r, ns := newReserved(t)
			i := 0
			afterJoin = func() {
				if i < len(tt.becomes) {
					if err := n.Reserve(map[Workload]string{web: tt.becomes[i]}); err != nil {
						t.Error(err)
					}
					i++
				}
			}
			defer func() { afterJoin = nil }()

			n.attach(r, ns)
			if got := n.groups(r.Addrs...); !slices.Equal(got, tt.want) {
				t.Errorf("in %v, want %v", got, tt.want)
			}
		})
	}
}

func TestAttachIsRefusedWithoutTheTableOfPolicies(t *testing.T) {
	n, r, ns := newReserved(t)
	n.nft("delete table inet kubeveil_policy")
	n.must(func() error {
		var undo Undo
		err := n.Attach(r, ns.Fd(), &undo)
		if !errors.Is(err, ErrClosed) {
			t.Errorf("attach: %v, want ErrClosed", err)
		}
		return undo.Run()
	})
	errtest.Check(t, n.bare())
}

func TestAttachThatFailsLeavesItsGroup(t *testing.T) {
	n, r, ns := newReserved(t)
	afterStep = func(name string) error {
		if name == "elements" {
			return errors.New("boom")
		}
		return nil
	}
	defer func() { afterStep = nil }()
	n.must(func() error {
		var undo Undo
		if err := n.Attach(r, ns.Fd(), &undo); err == nil {
			t.Error("attached")
		}
		return undo.Run()
	})
	if got := n.groups(r.Addrs...); len(got) != 0 {
		t.Errorf("in %v", got)
	}
}

// A DEL without a readable record still finds the addresses at the link.
func TestDetachWithoutARecordLeavesTheGroup(t *testing.T) {
	n, r, ns := newReserved(t)
	n.attach(r, ns)
	n.must(func() error { return os.WriteFile(n.record(r.HostLink), []byte("{"), 0o600) })
	n.must(func() error { return n.Detach(r.HostLink) })
	if got := n.groups(r.Addrs...); len(got) != 0 {
		t.Errorf("in %v", got)
	}
}

// The daemon moves a pod to another group while a DEL looks for it.
func TestDetachFollowsAGroupThatIsRemoved(t *testing.T) {
	n, r, ns := newReserved(t)
	n.attach(r, ns)

	const many = 15 // more than a few tries
	moves, from, to := 0, "one", "two"
	afterSearch = func() {
		if moves == many {
			return
		}
		moves++
		err := nftHere(t, fmt.Sprintf("add set inet kubeveil_policy m4_%[1]s { type ipv4_addr; }\n"+
			"add set inet kubeveil_policy m6_%[1]s { type ipv6_addr; }\n"+
			"add element inet kubeveil_policy m4_%[1]s { %[2]s }\n"+
			"add element inet kubeveil_policy m6_%[1]s { %[3]s }\n"+
			"delete set inet kubeveil_policy m4_%[4]s\ndelete set inet kubeveil_policy m6_%[4]s\n",
			to, pod4, pod6, from))
		if err != nil {
			t.Error(err)
		}
		from, to = to, from
	}
	t.Cleanup(func() { afterSearch = nil })
	n.must(func() error { return n.Detach(r.HostLink) })
	if got := n.groups(r.Addrs...); moves < many || len(got) != 0 {
		t.Errorf("moved %d times, in %v", moves, got)
	}
}

// DEL removes the pod's addresses although the daemon adds them to another group after DEL looked
// for them.
func TestDetachSeesAMoveBehindItsBack(t *testing.T) {
	n := newNode(t)
	n.judged()
	n.reserve("two")
	r, ns := newRecord(t, "c1", pod4)
	r.Workload = web
	n.attach(r, ns)

	searches := 0
	afterSearch = func() {
		if searches++; searches > 1 {
			return
		}
		if err := nftHere(t, fmt.Sprintf("add element inet kubeveil_policy m4_one { %s }\n",
			pod4)); err != nil {
			t.Error(err)
		}
	}
	t.Cleanup(func() { afterSearch = nil })
	n.must(func() error { return n.Detach(r.HostLink) })
	if searches != 2 {
		t.Errorf("%d searches, want another one after a change", searches)
	}
	if got := n.groups(r.Addrs...); len(got) != 0 {
		t.Errorf("in %v", got)
	}
}

func TestPodsAreNotJudgedWithoutPolicies(t *testing.T) {
	n := newNode(t)
	n.judged()
	n.must(n.ClosePolicy)
	r, ns := newRecord(t, "c1", pod4)
	r.Workload = web
	n.attach(r, ns)
	if got := n.groups(pod4); len(got) != 0 {
		t.Errorf("in %v", got)
	}
}

// The policy table accepts packets of known connections. So DEL ends the pod's connections: the
// next pod with the same address must not inherit them.
func TestDetachEndsThePodsConnections(t *testing.T) {
	end := func(addr string, port uint16) netip.AddrPort {
		return netip.AddrPortFrom(netip.MustParseAddr(addr), port)
	}
	left := nl.Opened{Client: end("198.18.1.6", 40000), Server: end("198.18.2.5", 80)}
	for name, remove := range map[string]func(n *node, r Record, undo *Undo) error{
		"DEL": func(n *node, r Record, _ *Undo) error { return n.Detach(r.HostLink) },
		"DEL of a damaged record": func(n *node, r Record, _ *Undo) error {
			err := os.WriteFile(n.record(r.HostLink), []byte("{"), 0o600)
			return errors.Join(err, n.Detach(r.HostLink))
		},
		"ADD that fails later": func(_ *node, _ Record, undo *Undo) error { return undo.Run() },
	} {
		t.Run(name, func(t *testing.T) {
			n, r, ns := newReserved(t)
			var undo Undo
			n.must(func() error { return n.Attach(r, ns.Fd(), &undo) })
			n.must(func() error {
				c, err := nfnl.Open()
				if err != nil {
					return err
				}
				defer c.Close()
				err = nl.TrackOpened(c, []nl.Opened{left,
					{Client: end("198.18.2.5", 40000), Server: netip.AddrPortFrom(pod4, 80)},
					{Client: netip.AddrPortFrom(pod4, 40001), Server: end("198.18.2.5", 80)},
					{Client: end("fd42:2::5", 40000), Server: netip.AddrPortFrom(pod6, 80)},
					{Client: netip.AddrPortFrom(pod6, 40001), Server: end("fd42:2::5", 80)},
				})
				if err != nil {
					return err
				}
				if err := remove(n, r, &undo); err != nil {
					return err
				}

				var clients []netip.Addr
				_, err = nl.FindConnections(c, func(c nl.Connection) bool {
					clients = append(clients, c.Client)
					return true
				})
				if len(clients) != 1 || clients[0] != left.Client.Addr() {
					t.Errorf("connections of %v are left, want that of %v alone", clients, left.Client)
				}
				return err
			})
		})
	}
}
