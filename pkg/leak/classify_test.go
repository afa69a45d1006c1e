package leak

import (
	"bytes"
	"net/netip"
	"testing"
)

func addrs(list ...string) []netip.Addr {
	var out []netip.Addr
	for _, s := range list {
		out = append(out, netip.MustParseAddr(s))
	}
	return out
}

func testRules() *Rules {
	return &Rules{
		Inner: []netip.Prefix{
			netip.MustParsePrefix("198.19.0.0/16"), netip.MustParsePrefix("198.18.128.0/20"),
			netip.MustParsePrefix("fd42:1::/48"), netip.MustParsePrefix("fd42:2::/112"),
		},
		Nodes:        addrs("198.18.0.11", "198.18.0.12", "fd42::b", "fd42::c"),
		TunnelPort:   51820,
		Canary:       []byte("the-canary-of-pods"),
		EgressCanary: []byte("the-canary-of-egress"),
		Outside:      addrs("198.18.0.250", "fd42::fa"),
		Flows: []Flow{{Name: "kube-apiserver", Proto: TCP,
			Addr: netip.MustParseAddr("198.18.0.2"), Port: 6443}},
		MaxFrame: 1514,
	}
}

const (
	node1, node2   = "198.18.0.11", "198.18.0.12"
	node1v6        = "fd42::b"
	node2v6        = "fd42::c"
	pod1, pod2     = "198.19.1.2", "198.19.2.2"
	pod1v6, pod2v6 = "fd42:1:0:1::2", "fd42:1:0:2::2"
	out4, out6     = "198.18.0.250", "fd42::fa"
)

func TestClassify(t *testing.T) {
	canary, egress := []byte("…the-canary-of-pods…"), []byte("…the-canary-of-egress…")
	tunnel := func(payload []byte) []byte {
		return eth(etherIPv4, ip4(node1, node2, UDP, udp(51820, 51820, payload)))
	}
	for name, c := range map[string]struct {
		frame []byte
		want  Kind
	}{
		"handshake initiation": {tunnel(wg(1, 148)), Tunnel},
		"handshake response":   {tunnel(wg(2, 92)), Tunnel},
		"cookie reply":         {tunnel(wg(3, 64)), Tunnel},
		"keepalive":            {tunnel(wg(4, 32)), Tunnel},
		"transport data over IPv6": {eth(etherIPv6,
			ip6(node1v6, node2v6, UDP, udp(51820, 51820, wg(4, 1452)))), Tunnel},
		"tunnel from a roamed port": {eth(etherIPv4,
			ip4(node1, node2, UDP, udp(40000, 51820, wg(4, 96)))), Tunnel},
		"tunnel port, no message type": {tunnel(wg(5, 96)), NotTunnel},
		"tunnel port, reserved bits":   {tunnel([]byte{4, 1, 0, 0, 1, 2, 3, 4}), NotTunnel},
		"tunnel port, empty":           {tunnel(nil), NotTunnel},
		"initiation of a wrong length": {tunnel(wg(1, 149)), NotTunnel},
		"tunnel port, plain text": {tunnel([]byte("hello, I am no ciphertext at all")),
			NotTunnel},
		"tunnel to a stranger": {eth(etherIPv4,
			ip4(node1, "198.18.0.99", UDP, udp(51820, 51820, wg(4, 96)))), Unknown},
		"canary inside the tunnel": {tunnel(append(wg(4, 32), canary...)), LeakCanary},

		"ARP between nodes":          {eth(etherARP, arp(node1, node2)), Neighbour},
		"ARP for a pod":              {eth(etherARP, arp(node1, pod2)), LeakAddress},
		"ARP from a service address": {eth(etherARP, arp("198.18.128.1", node2)), LeakAddress},
		"ARP cut short":              {eth(etherARP, arp(node1, node2)[:20]), Unreadable},
		"neighbour solicitation": {eth(etherIPv6,
			ip6(node1v6, "ff02::1:ff00:c", ICMPv6,
				icmp(135, netip.MustParseAddr(node2v6).AsSlice()))), Neighbour},
		"solicitation for a pod": {eth(etherIPv6,
			ip6(node1v6, "ff02::1:ff00:2", ICMPv6,
				icmp(135, netip.MustParseAddr(pod2v6).AsSlice()))), LeakAddress},
		"router solicitation": {eth(etherIPv6,
			ip6("fe80::1", "ff02::2", ICMPv6, icmp(133, nil))), Neighbour},
		"listener report": {eth(etherIPv6,
			ip6("fe80::1", "ff02::16", 0, extension(ICMPv6, 0, icmp(143, nil)))), Neighbour},
		"router advertisement": {eth(etherIPv6,
			ip6("fe80::1", "ff02::1", ICMPv6, icmp(134, nil))), Unknown},
		"IGMP report": {eth(etherIPv4,
			ip4(node1, "224.0.0.22", IGMP, make([]byte, 8))), Neighbour},

		"API server, request": {eth(etherIPv4,
			ip4(node1, "198.18.0.2", TCP, tcp(40000, 6443, nil))), Control},
		"API server, answer": {eth(etherIPv4,
			ip4("198.18.0.2", node1, TCP, tcp(6443, 40000, nil))), Control},
		"API server, another port": {eth(etherIPv4,
			ip4(node1, "198.18.0.2", TCP, tcp(40000, 2379, nil))), Unknown},
		"API server, from a pod": {eth(etherIPv4,
			ip4(pod1, "198.18.0.2", TCP, tcp(40000, 6443, nil))), LeakAddress},
		"API server, with the canary": {eth(etherIPv4,
			ip4(node1, "198.18.0.2", TCP, tcp(40000, 6443, canary))), LeakCanary},
		"host to host": {eth(etherIPv4,
			ip4(node1, node2, TCP, tcp(40000, 22, nil))), Unknown},
		"egress, masqueraded": {eth(etherIPv4,
			ip4(node1, out4, TCP, tcp(40000, 80, egress))), Egress},
		"egress over IPv6": {eth(etherIPv6,
			ip6(node1v6, out6, UDP, udp(40000, 53, egress))), Egress},
		"egress, not masqueraded": {eth(etherIPv4, ip4(pod1, out4, TCP, tcp(40000, 80, nil))),
			LeakAddress},
		"egress with the pods' canary": {eth(etherIPv4,
			ip4(node1, out4, TCP, tcp(40000, 80, canary))), LeakCanary},
		"egress canary elsewhere": {eth(etherIPv4,
			ip4(node1, node2, TCP, tcp(40000, 80, egress))), LeakEgress},

		"pod to pod": {eth(etherIPv4, ip4(pod1, pod2, TCP, tcp(1, 2, nil))),
			LeakAddress},
		"pod to pod over IPv6": {eth(etherIPv6, ip6(pod1v6, pod2v6, UDP, udp(1, 2, nil))),
			LeakAddress},
		"pod to node": {eth(etherIPv4, ip4(pod1, node2, TCP, tcp(1, 2, nil))),
			LeakAddress},
		"node to pod": {eth(etherIPv4, ip4(node1, pod2, ICMP, icmp(8, nil))),
			LeakAddress},
		"node to service": {eth(etherIPv4,
			ip4(node1, "198.18.128.10", TCP, tcp(1, 443, nil))), LeakAddress},
		"IPv4 in IPv4": {eth(etherIPv4,
			ip4(node1, node2, IPIP, ip4(pod1, pod2, TCP, tcp(1, 2, nil)))), LeakAddress},
		"IPv6 in IPv4": {eth(etherIPv4,
			ip4(node1, node2, IP6IP, ip6(pod1v6, pod2v6, TCP, tcp(1, 2, nil)))), LeakAddress},
		"ICMP error quoting a pod": {eth(etherIPv4,
			ip4(node1, node2, ICMP, icmp(3, ip4(pod1, pod2, UDP, udp(1, 2, nil))))), LeakAddress},
		"ICMPv6 error quoting a pod": {eth(etherIPv6,
			ip6(node1v6, node2v6, ICMPv6, icmp(2, ip6(pod1v6, pod2v6, UDP, udp(1, 2, nil))))),
			LeakAddress},
		"ICMP error quoting the tunnel": {eth(etherIPv4,
			ip4(node1, node2, ICMP, icmp(3,
				ip4(node2, node1, UDP, udp(51820, 51820, wg(4, 200)[:60]))))), TunnelError},
		"ICMPv6 quoting the tunnel": {eth(etherIPv6,
			ip6(node1v6, node2v6, ICMPv6, icmp(1,
				ip6(node2v6, node1v6, UDP, udp(51820, 51820, wg(1, 148)))))), TunnelError},
		"ICMP error quoting plain text": {eth(etherIPv4,
			ip4(node1, node2, ICMP, icmp(3,
				ip4(node2, node1, UDP, udp(51820, 51820, []byte("plain text")))))), Unknown},
		"ICMP error quoting ssh": {eth(etherIPv4,
			ip4(node1, node2, ICMP, icmp(3, ip4(node2, node1, TCP, tcp(22, 4000, nil))))), Unknown},
		"ICMP error with the canary": {eth(etherIPv4,
			ip4(node1, node2, ICMP, icmp(3,
				ip4(node2, node1, UDP, udp(51820, 51820, append(wg(4, 32), canary...)))))),
			LeakCanary},
		"IPv4-mapped pod address": {eth(etherIPv6,
			ip6("::ffff:198.19.1.2", node2v6, UDP, udp(1, 2, nil))), LeakAddress},

		"first fragment": {eth(etherIPv4,
			fragment4(ip4(node1, node2, UDP, udp(51820, 51820, wg(4, 96))), 0x2000)), Fragment},
		"last fragment": {eth(etherIPv4,
			fragment4(ip4(node1, node2, UDP, wg(4, 96)), 100)), Fragment},
		"fragment of a pod's packet": {eth(etherIPv4,
			fragment4(ip4(pod1, pod2, UDP, wg(4, 96)), 100)), LeakAddress},
		"fragment over IPv6": {eth(etherIPv6,
			ip6(node1v6, node2v6, 44, extension(UDP, 0x0008, wg(4, 96)))), Fragment},
		"atomic fragment over IPv6": {eth(etherIPv6,
			ip6(node1v6, node2v6, 44, extension(UDP, 0, udp(51820, 51820, wg(4, 96))))), Fragment},
		"fragment to the outside": {eth(etherIPv4,
			fragment4(ip4(node1, out4, UDP, wg(4, 96)), 100)), Fragment},
		"canary in a fragment": {eth(etherIPv4,
			fragment4(ip4(node1, node2, UDP, canary), 100)), LeakCanary},
		"do-not-fragment, not a fragment": {eth(etherIPv4,
			fragment4(ip4(node1, node2, UDP, udp(51820, 51820, wg(4, 96))), 0x4000)), Tunnel},

		"VLAN with a tunnel": {vlan(etherVLAN, etherIPv4,
			ip4(node1, node2, UDP, udp(51820, 51820, wg(4, 96)))), Unknown},
		"VLAN with a pod": {vlan(etherVLAN, etherIPv4, ip4(pod1, pod2, TCP, tcp(1, 2, nil))),
			LeakAddress},
		"VLAN in VLAN, a pod": {vlan(etherQinQ, etherVLAN,
			append([]byte{0, 8, 8, 0}, ip4(pod1, pod2, TCP, tcp(1, 2, nil))...)), LeakAddress},
		"VLAN cut short":        {vlan(etherVLAN, etherVLAN, []byte{1}), Unreadable},
		"another protocol":      {eth(0x88cc, []byte{1, 2, 3}), Unknown},
		"canary in another one": {eth(0x88cc, canary), LeakCanary},
		"oversize tunnel":       {tunnel(wg(4, 9000)), Oversize},
		"no Ethernet header":    {[]byte{1, 2, 3}, Unreadable},
		"IP version 5":          {eth(etherIPv4, bytes.Repeat([]byte{0x55}, 40)), Unreadable},
		"IPv4 cut short":        {eth(etherIPv4, ip4(pod1, pod2, TCP, nil)[:15]), Unreadable},
	} {
		t.Run(name, func(t *testing.T) {
			if got := Classify(testRules(), c.frame); got.Kind != c.want {
				t.Errorf("got %s (%s), want %s", got.Kind, got.Detail, c.want)
			}
		})
	}
}

// TestClassifyReadsPacketsInPackets sends packets that the guard would drop to a host outside, to
// which anything else may be sent.
func TestClassifyReadsPacketsInPackets(t *testing.T) {
	const far4, far6, far6b = "203.0.113.7", "2001:db8::7", "2001:db8::8"
	data := udp(1, 2, nil)
	to4, to6 := ip4(far4, pod2, UDP, data), ip6(far6, pod2v6, UDP, data)
	hosts4, hosts6 := ip4(far4, far4, UDP, data), ip6(far6, far6b, UDP, data)
	in4 := func(proto byte, inside []byte) []byte {
		return eth(etherIPv4, ip4(node1, out4, proto, inside))
	}
	in6 := func(proto byte, inside []byte) []byte {
		return eth(etherIPv6, ip6(node1v6, out6, proto, inside))
	}

	inFrame := func(p []byte) []byte {
		if p[0]>>4 == 6 {
			return eth(etherIPv6, p)
		}
		return vlan(etherVLAN, etherIPv4, p)
	}

	options := func(n int, next byte, inside []byte) []byte {
		for range n {
			inside, next = extension(next, 0, inside), 60
		}
		return in6(next, inside)
	}
	for name, c := range map[string]struct {
		frame []byte
		want  Kind
	}{
		"seg6, mode encap":        {in6(43, routing(4, IP6IP, to6, far6)), LeakAddress},
		"seg6, mode encap, IPv4":  {in6(43, routing(4, IPIP, to4, far6)), LeakAddress},
		"seg6, mode encap, hosts": {in6(43, routing(4, IP6IP, hosts6, far6)), Egress},
		"seg6, mode l2encap": {in6(43, routing(4, protoEthernet, inFrame(to4), far6)),
			LeakAddress},
		"seg6, mode inline": {in6(43, routing(4, UDP, data, pod2v6, far6)),
			LeakAddress},
		"seg6, mode inline, a later one": {in6(43, routing(4, UDP, data, far6, far6b, pod2v6)),
			LeakAddress},
		"seg6, mode inline, hosts": {in6(43, routing(4, UDP, data, far6, far6b)), Egress},
		"seg6, the list cut short": {in6(43, routing(4, UDP, nil, far6, far6b)[:30]),
			Unreadable},
		"source route":           {in6(43, routing(0, UDP, data, pod2v6)), LeakAddress},
		"mobile node":            {in6(43, routing(2, UDP, data, pod2v6)), LeakAddress},
		"unknown routing header": {in6(43, routing(253, UDP, data, pod2v6)), Egress},
		"rpl, whole addresses": {in6(43, compressed(UDP, 0, 0, data, far6, pod2v6)),
			LeakAddress},
		"rpl, compressed": {in6(43,
			compressed(UDP, 2, 2, data, "fd42:9::1", pod2v6)), LeakAddress},
		"rpl, the last compressed more": {in6(43, compressed(UDP, 0, 2, data, far6, pod2v6)),
			LeakAddress},
		"rpl, hosts": {in6(43, compressed(UDP, 0, 2, data, far6, out6)),
			Egress},
		"ioam6":                         {in6(0, extension(IP6IP, 0, to6)), LeakAddress},
		"behind many options":           {options(20, IP6IP, to6), LeakAddress},
		"behind many options, a host's": {options(20, IP6IP, hosts6), Egress},
		"behind HIP and shim6": {in6(139, extension(140, 0, extension(IPIP, 0, to4))),
			LeakAddress},
		"options cut short":           {in6(60, extension(UDP, 0, nil)[:6]), Unreadable},
		"behind authentication":       {in4(51, authenticated(IPIP, to4)), LeakAddress},
		"behind authentication, IPv6": {in6(51, authenticated(IP6IP, to6)), LeakAddress},
		"authentication cut short":    {in4(51, authenticated(IPIP, nil)[:20]), Unreadable},
		"in the first fragment": {eth(etherIPv4,
			fragment4(ip4(node1, out4, IPIP, to4), 0x2000)), LeakAddress},
		"in the first fragment, IPv6": {in6(44, extension(IP6IP, 1, to6)), LeakAddress},
		"in a frame":                  {in4(protoEthernet, inFrame(to6)), LeakAddress},
		"in a frame cut short":        {in4(protoEthernet, inFrame(to6)[:13]), Unreadable},
		"cut short inside":            {in4(IPIP, to4[:19]), Unreadable},
		"two deep":                    {in6(IPIP, ip4(far4, far4, IP6IP, to6)), LeakAddress},
		"two deep, hosts":             {in6(IPIP, ip4(far4, far4, IP6IP, hosts6)), Egress},
		"three deep, hosts": {in6(IPIP,
			ip4(far4, far4, IP6IP, ip6(far6, far6b, IPIP, hosts4))), Unreadable},
		"ICMP error about two deep": {in4(ICMP, icmp(3, ip4(far4, far4, IPIP, to4))),
			LeakAddress},
		"ICMPv6 error about seg6": {in6(ICMPv6,
			icmp(3, ip6(far6, far6b, 43, routing(4, UDP, data, pod2v6)))), LeakAddress},
		"ICMP error, its quote cut": {in6(ICMPv6,
			icmp(3, ip6(far6, far6b, 60, extension(UDP, 0, nil)[:4]))), Egress},
	} {
		t.Run(name, func(t *testing.T) {
			if got := Classify(testRules(), c.frame); got.Kind != c.want {
				t.Errorf("got %s (%s), want %s", got.Kind, got.Detail, c.want)
			}
		})
	}
}

// Rules that allow nothing find everything but neighbour discovery.
func TestClassifyZeroRules(t *testing.T) {
	frame := eth(etherIPv4, ip4(node1, node2, UDP, udp(51820, 51820, wg(4, 96))))
	if got := Classify(&Rules{}, frame); got.Kind != Unknown {
		t.Errorf("tunnel packet: got %s, want %s", got.Kind, Unknown)
	}
	if got := Classify(&Rules{}, eth(etherARP, arp(node1, node2))); got.Kind != Neighbour {
		t.Errorf("ARP: got %s, want %s", got.Kind, Neighbour)
	}
}

// For arbitrary bytes Classify ends, does not change the frame, and never allows a canary or a
// plain header with a pod's address.
func FuzzClassify(f *testing.F) {
	f.Add(eth(etherIPv4, ip4(node1, node2, UDP, udp(51820, 51820, wg(4, 96)))))
	f.Add(eth(etherIPv4, ip4(node1, node2, ICMP, icmp(3, ip4(pod1, pod2, UDP, udp(1, 2, nil))))))
	f.Add(eth(etherIPv6, ip6(node1v6, node2v6, 44, extension(UDP, 8, wg(4, 96)))))
	f.Add(eth(etherIPv6, ip6(node1v6, node2v6, 0,
		extension(60, 0, extension(ICMPv6, 0, icmp(135, netip.MustParseAddr(pod2v6).AsSlice()))))))
	f.Add(vlan(etherQinQ, etherVLAN, append([]byte{0, 8, 8, 0},
		ip4(pod1, pod2, TCP, tcp(1, 2, nil))...)))
	f.Add(eth(etherARP, arp(node1, pod2)))
	f.Add(eth(etherIPv6, ip6(node1v6, out6, 43,
		routing(4, IP6IP, ip6(node1v6, pod2v6, UDP, udp(1, 2, nil)), out6))))
	f.Add(eth(etherIPv6, ip6(node1v6, out6, 43, compressed(UDP, 2, 3, udp(1, 2, nil), out6, out6))))
	f.Add(eth(etherIPv4, ip4(node1, out4, 51,
		authenticated(protoEthernet, eth(etherIPv6, ip6(node1v6, out6, 60, nil))))))
	r := testRules()

	f.Fuzz(func(t *testing.T, frame []byte) {
		before := bytes.Clone(frame)
		v := Classify(r, frame)
		if !bytes.Equal(before, frame) {
			t.Fatal("the frame was changed")
		}
		if !v.Kind.Allowed() && !v.Kind.Leak() && v.Detail == "" {
			t.Errorf("%s without a reason", v.Kind)
		}
		if got := Classify(r, append(frame, r.Canary...)); got.Kind != LeakCanary {
			t.Errorf("canary at the end: %s", got.Kind)
		}

		// An IPv4 header with a pod's address is a leak, regardless of its other fields.
		if len(frame) >= 34 && frame[12] == 8 && frame[13] == 0 && frame[14]>>4 == 4 {
			pod := netip.MustParseAddr(pod2).As4()
			copy(frame[30:], pod[:])
			if got := Classify(r, frame); !got.Kind.Leak() {
				t.Errorf("pod address as destination: %s", got.Kind)
			}
			copy(frame, before)
		}
	})
}
