package flow

import (
	"net/netip"
	"testing"

	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/telemetry"
)

func TestConnectionsAreJudgedByTheirLegs(t *testing.T) {
	c := addresses{ranges: newRanges(nettest.Prefixes("198.18.0.0/16", "fd42::/48")...),
		nodeRanges: newRanges(nettest.Prefixes("192.0.2.0/25")...),
		former:     map[netip.Addr]bool{netip.MustParseAddr("203.0.113.9"): true},
		rows: rowsOf(nettest.Addrs("192.0.2.99", "fd00:9::99"),
			nettest.Addrs("203.0.113.20"))}
	at := netip.MustParseAddr
	var (
		pod     = end{addr: at("198.18.1.5"), pod: "shop/web"}
		farPod  = end{addr: at("198.18.2.5"), inner: true}
		host    = end{addr: at("192.0.2.1")}
		node    = end{addr: at("192.0.2.2"), node: "node-2"}
		outside = end{addr: at("203.0.113.1")}
	)
	clear := func(near, far end, wire string) leg {
		return leg{course: inClear, link: "eth0", near: near, far: far, wire: at(wire)}
	}
	toClient := func(l leg) leg { l.toClient = true; return l }
	arrival := func(l leg) leg { l.toClient, l.arrival = true, true; return l }
	tunnel := leg{course: tunnelled, link: "veil0", peer: "node-2"}

	for name, tt := range map[string]struct {
		legs       []leg
		translated bool
		class      telemetry.FlowClass
		row        int
		alarm      bool
	}{
		"no leg":          {nil, false, telemetry.FlowLocal, 0, false},
		"to a pod here":   {[]leg{{course: stays}}, false, telemetry.FlowLocal, 0, false},
		"in the tunnel":   {[]leg{tunnel}, false, telemetry.FlowTunnel, 0, false},
		"without a route": {[]leg{{course: refused}}, false, telemetry.FlowRefused, 0, false},
		"one leg is clear": {[]leg{tunnel, clear(host, node, "192.0.2.1")},
			false, telemetry.FlowHost, 2, false},
		"refused on a leg": {[]leg{tunnel, {course: refused}},
			false, telemetry.FlowRefused, 0, false},
		"pod to outside": {[]leg{clear(pod, outside, "192.0.2.1")},
			false, telemetry.FlowOutside, 1, false},
		"host to outside": {[]leg{clear(host, outside, "192.0.2.1")},
			false, telemetry.FlowOutside, 1, false},
		"outside to host": {[]leg{toClient(clear(host, outside, "192.0.2.1"))},
			false, telemetry.FlowOutside, 1, false},
		"host to host": {[]leg{clear(host, node, "192.0.2.1")},
			false, telemetry.FlowHost, 2, false},
		"host to a far pod": {[]leg{clear(host, farPod, "192.0.2.1")},
			false, telemetry.FlowOutside, 0, true},
		"outside to a NodePort": {[]leg{toClient(clear(pod, outside, "192.0.2.1"))}, true,
			telemetry.FlowOutside, 3, false},
		"outside to a NodePort of a far pod": {[]leg{arrival(clear(farPod, outside, "192.0.2.1")),
			tunnel},
			true, telemetry.FlowOutside, 3, false},
		"outside to a NodePort of a far host": {[]leg{arrival(clear(node, outside, "192.0.2.1")),
			clear(outside, node, "192.0.2.1")}, true, telemetry.FlowOutside, 3, false},
		"a node to a NodePort": {[]leg{tunnel, arrival(clear(pod, node, "192.0.2.1"))}, true,
			telemetry.FlowHost, 2, false},
		"to a machine without a Node": {[]leg{clear(pod, end{addr: at("192.0.2.77")}, "192.0.2.1")},
			false, telemetry.FlowOutside, 8, false},
		"to a deleted node": {[]leg{clear(pod, end{addr: at("203.0.113.9")}, "192.0.2.1")},
			false, telemetry.FlowOutside, 8, false},
		"to an address that a service had": {[]leg{
			clear(pod, end{addr: at("192.0.2.99")}, "192.0.2.1")},
			false, telemetry.FlowOutside, 9, false},
		"to an IPv6 address that a service had": {[]leg{
			clear(pod, end{addr: at("fd00:9::99")}, "fd00:9::1")},
			false, telemetry.FlowOutside, 9, false},
		"to the cluster's balancer": {[]leg{
			clear(pod, end{addr: at("203.0.113.20")}, "192.0.2.1")},
			false, telemetry.FlowOutside, 10, false},
		"a host to the cluster's balancer": {[]leg{
			clear(host, end{addr: at("203.0.113.20")}, "192.0.2.1")},
			false, telemetry.FlowOutside, 1, false},
		"to the cloud's metadata": {[]leg{
			clear(pod, end{addr: at("169.254.169.254")}, "192.0.2.1")},
			false, telemetry.FlowOutside, 17, false},

		"pod to pod in clear": {[]leg{clear(pod, farPod, "192.0.2.1")},
			false, telemetry.FlowOutside, 0, true},
		"pod to node in clear": {[]leg{clear(pod, node, "192.0.2.1")},
			false, telemetry.FlowOutside, 0, true},
		"a node to a pod in clear": {[]leg{toClient(clear(pod, node, "198.18.1.5"))},
			false, telemetry.FlowOutside, 0, true},
		"a reply of a NodePort to a node in clear": {[]leg{
			toClient(clear(pod, node, "192.0.2.1"))}, true,
			telemetry.FlowOutside, 0, true},
		"a pod's address outside": {[]leg{clear(pod, outside, "198.18.1.5")},
			false, telemetry.FlowOutside, 0, true},
		"the alarm comes first": {[]leg{arrival(clear(farPod, outside, "192.0.2.1")),
			clear(outside, farPod, "192.0.2.1")}, true, telemetry.FlowOutside, 0, true},
	} {
		t.Run(name, func(t *testing.T) {
			v := c.judge(tt.legs, tt.translated)
			if v.Class != tt.class || v.Row != tt.row || v.Alarm != tt.alarm {
				t.Errorf("%s, row %d, alarm %v; want %s, row %d, alarm %v", v.Class, v.Row, v.Alarm,
					tt.class, tt.row, tt.alarm)
			}
		})
	}
}

func TestPeerHasTheLongestPrefix(t *testing.T) {
	tun := newTunnels(nil, []telemetry.Peer{
		{Name: "wide", Device: "veil0", AllowedIPs: nettest.Prefixes("198.18.0.0/16", "fd42::/48")},
		{Name: "narrow", Device: "veil0", AllowedIPs: nettest.Prefixes("198.18.7.0/24")},
		{Device: "veil1", AllowedIPs: nettest.Prefixes("198.18.8.0/24")},
	})
	for _, tt := range []struct{ device, addr, want string }{
		{"veil0", "198.18.7.1", "narrow"}, {"veil0", "198.18.8.1", "wide"},
		{"veil0", "fd42::1", "wide"}, {"veil0", "203.0.113.1", ""}, {"veil1", "198.18.7.1", ""},
		{"veil1", "198.18.8.1", "an unknown peer"},
	} {
		if got := tun.peer(tt.device, netip.MustParseAddr(tt.addr)); got != tt.want {
			t.Errorf("%s on %s: %q, want %q", tt.addr, tt.device, got, tt.want)
		}
	}
}

func TestKeptIsBounded(t *testing.T) {
	k := newKept()
	for range Kept + 7 {
		k.add(telemetry.Flow{Class: telemetry.FlowOutside})
	}
	k.add(telemetry.Flow{Class: telemetry.FlowOutside, Alarm: true})
	got := k.all()
	if len(got.Flows) != Kept+1 || !got.Flows[0].Alarm || got.LeftOut[telemetry.FlowOutside] != 7 ||
		got.Count[telemetry.FlowOutside] != Kept+8 || got.Alarms != 1 {
		t.Errorf("%d flows, left out %v of %v", len(got.Flows), got.LeftOut, got.Count)
	}
}

func TestRangesHaveTheAddressesOfAllPrefixes(t *testing.T) {
	r := newRanges(nettest.Prefixes("198.18.7.0/24", "fd42::/48", "198.18.0.0/16", "203.0.113.4/32",
		"fd42:0:0:7::/64", "198.18.0.0/16")...)
	if len(r) != 3 {
		t.Errorf("%v: some are within others", r)
	}
	for a, want := range map[string]bool{"198.17.255.255": false, "198.18.0.0": true,
		"198.18.7.9": true, "198.18.255.255": true, "198.19.0.0": false, "203.0.113.4": true,
		"203.0.113.5": false, "fd42::7:0:0:0:1": true, "fd41::1": false, "fd43::": false,
		"::": false} {
		if got := r.has(netip.MustParseAddr(a)); got != want {
			t.Errorf("%s: %v", a, got)
		}
	}
	if r.has(netip.Addr{}) || newRanges().has(netip.MustParseAddr("::1")) {
		t.Error("an address is in no prefix")
	}
}
