package hostnet

import (
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kubeveil/kubeveil/pkg/hostnet/tables"
)

const golden4 = `rule 90: inet fwmark 0x200000/0x200000 lookup main suppress_ifgroup 0x7674
rule 91: inet fwmark 0x200000/0x200000 unreachable
rule 100: inet fwmark 0x100000/0x100000 lookup 30309
`

func TestPlanIsGolden(t *testing.T) {
	for _, tt := range []struct {
		name string
		want Want
		text string
	}{
		{"nothing", Want{}, "forwarding inet false inet6 false\n"},
		{"before the first device and peer", Want{
			ClusterRanges: prefixes("198.18.128.0/17"), ServiceRanges: prefixes("198.19.0.0/16"),
			NodeAddrs: addrs("198.18.0.2"),
		}, golden4 + `route unreachable 169.254.1.1/32 table 30309 metric 1986330624
route unreachable 169.254.1.2/32 table 30309 metric 1986330624
route unreachable 198.18.0.2/32 table 30309 metric 1986330624
route unreachable 198.18.128.0/17 table 30309 metric 1986330624
route unreachable 198.19.0.0/16 table 30309 metric 1986330624
route unreachable 198.18.128.0/17 table main metric 1986330624
route unreachable 198.19.0.0/16 table main metric 1986330624
forwarding inet true inet6 false
`},
		{"the networks of nodes are closed to pods, and to them alone", Want{
			ClosedRanges: prefixes("198.18.0.0/24", "fd42:0:0:1::/64"),
			NodeAddrs:    addrs("198.18.0.2"),
			Peers: []Peer{{Name: "x", NodeAddrs: addrs("198.18.0.9"),
				Devices: []string{"veil3"}}},
		}, golden4 + `route unreachable 198.18.0.0/24 table 30309 metric 1986330624
route unreachable 198.18.0.2/32 table 30309 metric 1986330624
route 198.18.0.9/32 dev veil3 table 30309 metric 1024
route unreachable 198.18.0.9/32 table 30309 metric 1986330624
route unreachable fd42:0:0:1::/64 table 30309 metric 1986330624
forwarding inet false inet6 false
`},
		{"a peer whose prefix and address nothing else holds is closed beneath", Want{
			Peers: []Peer{{Name: "x", PodPrefixes: prefixes("198.18.130.7/24"),
				NodeAddrs: addrs("198.18.0.9"), Devices: []string{"veil3"}}},
		}, golden4 + `route 198.18.0.9/32 dev veil3 table 30309 metric 1024
route unreachable 198.18.0.9/32 table 30309 metric 1986330624
route 198.18.130.0/24 dev veil3 table 30309 metric 1024
route unreachable 198.18.130.0/24 table 30309 metric 1986330624
route 198.18.130.0/24 dev veil3 table main metric 1024
route unreachable 198.18.130.0/24 table main metric 1986330624
forwarding inet false inet6 false
`},
		{"ipv4", only(dual(), false), golden4 + routes4 + devices +
			"forwarding inet true inet6 false\n" + nftTables},
		{"ipv6", only(dual(), true), golden6 + routes6 + devices +
			"forwarding inet false inet6 true\n" + nftTables},
		{"reflected marks: answers to pods and nodes have a source", Want{
			ClusterRanges: prefixes("198.18.128.0/17"), SelfAddrs: addrs("198.18.0.1"),
			ReflectMarks: true,
			Peers: []Peer{{Name: "x", PodPrefixes: prefixes("198.18.130.0/24"),
				NodeAddrs: addrs("198.18.0.9"), Devices: []string{"veil3"}}},
		}, golden4 + `route unreachable 169.254.1.1/32 table 30309 metric 1986330624
route unreachable 169.254.1.2/32 table 30309 metric 1986330624
route unreachable 198.18.0.1/32 table 30309 metric 1986330624
route 198.18.0.9/32 dev veil3 table 30309 metric 1024 src 198.18.0.1
route unreachable 198.18.0.9/32 table 30309 metric 1986330624
route unreachable 198.18.128.0/17 table 30309 metric 1986330624
route 198.18.130.0/24 dev veil3 table 30309 metric 1024 src 198.18.0.1
route unreachable 198.18.128.0/17 table main metric 1986330624
route 198.18.130.0/24 dev veil3 table main metric 1024 src 198.18.0.1
forwarding inet true inet6 false
fwmark_reflect inet 118 inet6 0
`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if diff := cmp.Diff(tt.text, Plan(tt.want).String()); diff != "" {
				t.Errorf("plan (-want +got):\n%s", diff)
			}
		})
	}
}

const routes4 = `route unreachable 169.254.1.1/32 table 30309 metric 1986330624
route unreachable 169.254.1.2/32 table 30309 metric 1986330624
route unreachable 198.18.0.1/32 table 30309 metric 1986330624
route 198.18.0.2/32 dev veil0 table 30309 metric 1024
route unreachable 198.18.0.2/32 table 30309 metric 1986330624
route 198.18.0.3/32 dev veil0 table 30309 metric 1024 mtu 1300
route unreachable 198.18.0.3/32 table 30309 metric 1986330624
route unreachable 198.18.0.4/32 table 30309 metric 1986330624
route unreachable 198.18.128.0/17 table 30309 metric 1986330624
route 198.18.130.0/24 dev veil0 table 30309 metric 1024
route 198.18.131.0/24 dev veil0 table 30309 metric 1024 mtu 1300
route unreachable 198.19.0.0/16 table 30309 metric 1986330624
route unreachable 198.18.128.0/17 table main metric 1986330624
route 198.18.130.0/24 dev veil0 table main metric 1024 src 198.18.0.1
route 198.18.131.0/24 dev veil0 table main metric 1024 src 198.18.0.1 mtu 1300
route 198.19.0.0/16 dev veil0 table main metric 1024 src 198.18.0.1
route unreachable 198.19.0.0/16 table main metric 1986330624
`

const golden6 = `rule 90: inet6 fwmark 0x200000/0x200000 lookup main suppress_ifgroup 0x7674
rule 91: inet6 fwmark 0x200000/0x200000 unreachable
rule 100: inet6 fwmark 0x100000/0x100000 lookup 30309
`

const routes6 = `route unreachable ::/128 table 30309 metric 1986330624
route unreachable fd42:0:0:1::1/128 table 30309 metric 1986330624
route fd42:0:0:1::2/128 dev veil0 table 30309 metric 1024
route unreachable fd42:0:0:1::2/128 table 30309 metric 1986330624
route fd42:0:0:1::3/128 dev veil0 table 30309 metric 1024 mtu 1300
route unreachable fd42:0:0:1::3/128 table 30309 metric 1986330624
route unreachable fd42:0:0:1::4/128 table 30309 metric 1986330624
route unreachable fd42:aaaa::/32 table 30309 metric 1986330624
route fd42:aaaa:0:2::/64 dev veil0 table 30309 metric 1024
route fd42:aaaa:0:3::/64 dev veil0 table 30309 metric 1024 mtu 1300
route unreachable fd42:bbbb::/108 table 30309 metric 1986330624
route unreachable fd42:aaaa::/32 table main metric 1986330624
route fd42:aaaa:0:2::/64 dev veil0 table main metric 1024 src fd42:0:0:1::1
route fd42:aaaa:0:3::/64 dev veil0 table main metric 1024 src fd42:0:0:1::1 mtu 1300
route fd42:bbbb::/108 dev veil0 table main metric 1024 src fd42:0:0:1::1
route unreachable fd42:bbbb::/108 table main metric 1986330624
`

const devices = "device veil0 group 0x7674 mtu 1420 qlen 10000 rp_filter 2 169.254.1.2 up\n"

var nftTables = tables.NAT().String() + tables.Outer(51820).String()

func TestPlanDoesNotDependOnOrder(t *testing.T) {
	want := Plan(dual()).String()
	for range 50 {
		w := dual()
		shuffle(w.Peers)
		shuffle(w.ClusterRanges)
		shuffle(w.ServiceRanges)
		shuffle(w.NodeAddrs)
		if diff := cmp.Diff(want, Plan(w).String()); diff != "" {
			t.Fatalf("plan of a shuffled want (-want +got):\n%s", diff)
		}
	}
}

func shuffle[T any](s []T) { rand.Shuffle(len(s), func(i, j int) { s[i], s[j] = s[j], s[i] }) }

func TestDiffOfOneChangedPeerTouchesOnlyThatPeer(t *testing.T) {
	before, after := dual(), dual()
	after.Peers = slices.Clone(after.Peers)
	after.Peers[1].MTU = 1280
	var got []string
	for _, op := range Diff(Plan(before), Plan(after)) {
		got = append(got, op.String())
	}
	want := []string{
		"replace route 198.18.0.3/32 dev veil0 table 30309 metric 1024 mtu 1280",
		"replace route 198.18.131.0/24 dev veil0 table 30309 metric 1024 mtu 1280",
		"replace route fd42:0:0:1::3/128 dev veil0 table 30309 metric 1024 mtu 1280",
		"replace route fd42:aaaa:0:3::/64 dev veil0 table 30309 metric 1024 mtu 1280",
		"replace route 198.18.131.0/24 dev veil0 table main metric 1024 src 198.18.0.1 mtu 1280",
		"replace route fd42:aaaa:0:3::/64 dev veil0 table main metric 1024 src " +
			"fd42:0:0:1::1 mtu 1280",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("ops (-want +got):\n%s", diff)
	}
}

// The function equal compares every field. Changes of a field that it does not compare would be
// lost.
func TestEqualWantsSeeEachField(t *testing.T) {
	wants := func() Want {
		w := manyPeers(2)
		w.ClosedRanges, w.Masquerade, w.ReflectMarks, w.Flowtable, w.TunnelPort = w.ClusterRanges,
			true, true, true, 1
		w.Peers[0].MTU = 1300
		return w
	}
	full := wants()
	if !full.equal(wants()) {
		t.Error("what wants the same is not equal")
	}

	for i := range reflect.TypeFor[Want]().NumField() {
		less := full
		reflect.ValueOf(&less).Elem().Field(i).SetZero()
		if full.equal(less) {
			t.Errorf("a Want without %s is equal", reflect.TypeFor[Want]().Field(i).Name)
		}
	}

	for i := range reflect.TypeFor[Peer]().NumField() {
		less := full
		less.Peers = slices.Clone(full.Peers)
		reflect.ValueOf(&less.Peers[0]).Elem().Field(i).SetZero()
		if full.equal(less) {
			t.Errorf("a peer without %s is equal", reflect.TypeFor[Peer]().Field(i).Name)
		}
	}
}

func TestDiffOrder(t *testing.T) {
	ops := Diff(State{}, Plan(dual()))
	ops = append(ops, Diff(Plan(dual()), State{})...)
	for _, half := range [][]Op{ops[:len(ops)/2], ops[len(ops)/2:]} {
		if !slices.IsSortedFunc(half, func(a, b Op) int { return int(a.phase() - b.phase()) }) {
			t.Errorf("ops are not in the order of their phases: %s", half)
		}
	}
}

func TestDiffKeepsRouterAdvertisements(t *testing.T) {
	ops := Diff(State{RALinks: []string{"eth7"}}, State{Forward6: true})
	want := []Op{settingOp{acceptRAPath("eth7"), "2"}, settingOp{forward6Path, "1"}}
	if !slices.Equal(ops, want) {
		t.Errorf("ops = %s, want %s", ops, want)
	}
}
