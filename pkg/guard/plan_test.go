package guard

import (
	"net"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kubeveil/kubeveil/internal/nl"
	"github.com/kubeveil/kubeveil/pkg/abi"
)

func TestWhichLinksAreGuarded(t *testing.T) {
	link := func(typ, encap string, group uint32, flags net.Flags) nl.Link {
		a := nl.NewLinkAttrs()
		a.Index, a.Name, a.EncapType, a.Group, a.Flags = 7, "x", encap, group, flags
		return &nl.GenericLink{LinkAttrs: a, LinkType: typ}
	}

	for _, c := range []struct {
		situation         string
		link              nl.Link
		guarded, ethernet bool
	}{
		{"network card", link("device", "ether", 0, 0), true, true},
		{"bridge of something else", link("bridge", "ether", 0, 0), true, true},
		{"veth of something else", link("veth", "ether", 0, 0), true, true},
		{"veth of a pod", link("veth", "ether", abi.PodGroup, 0), false, true},
		{"our tunnel", link("tun", "none", abi.TunnelGroup, 0), false, false},
		{"tunnel of something else", link("tun", "none", 0, 0), true, false},
		{"ipip", link("ipip", "ipip", 0, 0), true, false},
		{"lo", link("device", "loopback", 0, net.FlagLoopback), false, false},
		{"ifb", link("ifb", "ether", 0, 0), false, true},
	} {
		t.Run(c.situation, func(t *testing.T) {
			want := Link{Index: 7, Name: "x", Guarded: c.guarded, Ethernet: c.ethernet}
			if diff := cmp.Diff(want, linkOf(c.link)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestPlanNamesTheProgramForTheLink(t *testing.T) {
	points := planPoints([]Link{{Index: 2, Guarded: true, Ethernet: true},
		{Index: 3, Guarded: true}, {Index: 4}})
	got := map[Point]string{}
	for p, a := range points {
		got[p] = a.Ours[0].Pin
	}
	want := map[Point]string{
		{2, Ingress}: abi.PinGuardIngress, {2, Egress}: abi.PinGuardEgress,
		{3, Ingress}: abi.PinGuardIngressL3, {3, Egress}: abi.PinGuardEgressL3,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestDiffAddsBeforeItRemoves(t *testing.T) {
	now := func(pin string) Program { return Program{ID: 1, Pin: pin, Current: true} }
	old := func(pin string) Program { return Program{ID: 100, Pin: pin} }
	in, in3 := abi.PinGuardIngress, abi.PinGuardIngressL3
	for _, c := range []struct {
		situation string
		guarded   bool
		have      Attached
		want      []string
	}{
		{"nothing is attached", true, Attached{}, []string{"attach guard_ingress to u0 ingress"}},
		{"it is attached", true, Attached{[]Program{now(in)}, true}, nil},
		{"an earlier version is", true, Attached{[]Program{old(in)}, true},
			[]string{"attach guard_ingress to u0 ingress", "detach program 100 from u0 ingress"}},
		{"both are", true, Attached{[]Program{now(in), old(in)}, true},
			[]string{"detach program 100 from u0 ingress"}},
		{"another's program is first", true, Attached{[]Program{now(in)}, false},
			[]string{"move guard_ingress of u0 ingress to the front"}},
		{"the one for other links is", true, Attached{[]Program{now(in3)}, true},
			[]string{"attach guard_ingress to u0 ingress", "detach program 1 from u0 ingress"}},
		{"link became a pod's", false, Attached{[]Program{now(in)}, true},
			[]string{"detach program 1 from u0 ingress"}},
	} {
		t.Run(c.situation, func(t *testing.T) {
			links := []Link{{Index: 2, Name: "u0", Guarded: c.guarded, Ethernet: true}}
			want := planPoints(links)
			p := Point{2, Ingress}
			got := texts(diffPoint(links[0], p, c.have, want[p]))
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}

	have := Plan(Settings{Ranges: prefixes("198.18.0.0/24", "198.18.1.0/24"),
		NodeAddrs: addrs("198.19.0.1")}, nil)
	want := Plan(Settings{Ranges: prefixes("198.18.0.0/16", "198.18.1.0/24"),
		NodeAddrs: addrs("198.19.0.2")}, nil)
	ops := texts(Diff(have, want))
	wantOps := []string{
		"add range 198.18.0.0/16", "add node address 198.19.0.2",
		"write nftables table kubeveil_guard: set ranges4 +1 -2, set nodes4 +1 -1",
		"remove range 198.18.0.0/24", "remove node address 198.19.0.1",
	}
	if diff := cmp.Diff(wantOps, ops); diff != "" {
		t.Error(diff)
	}

	if ops := Diff(want, want); len(ops) != 0 {
		t.Errorf("equal states differ: %v", ops)
	}
}

func texts(ops []Op) []string {
	var out []string
	for _, op := range ops {
		out = append(out, op.String())
	}
	return out
}

func TestRangeKeysRoundTrip(t *testing.T) {
	for _, p := range prefixes("0.0.0.0/0", "198.18.0.0/15", "198.18.1.1/32", "::/0", "fd42::/16",
		"fd42::1/128") {
		if got := keyOf(p).prefix(); got != p {
			t.Errorf("%s came back as %s", p, got)
		}
	}
}
