package nftables_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/policy"
	"github.com/kubeveil/kubeveil/pkg/policy/nftables"
	"github.com/kubeveil/kubeveil/pkg/policy/planner"
)

// caches are the addresses of a DNS cache on the node, as NodeLocal DNSCache has them.
var caches = []netip.Addr{netip.MustParseAddr("198.18.200.10"), netip.MustParseAddr("fd42:200::10")}

// resolver runs a server of TCP and UDP on the node that returns what it receives, at port 53 of an
// address of caches and at port 54, which no policy of the test allows.
func (l *lab) resolver(addr netip.Addr) {
	l.t.Helper()
	ip := nettest.NeedProgram(l.t, "ip")
	l.run(l.node, ip, fmt.Sprintf("addr add %v dev lo nodad", netip.PrefixFrom(addr, addr.BitLen())))
	for _, port := range []uint16{53, 54} {
		at := netip.AddrPortFrom(addr, port).String()
		l.node.Run(l.t, func() error {
			stream, err := net.Listen("tcp", at)
			if err != nil {
				return err
			}
			l.t.Cleanup(func() { stream.Close() })
			go serveStreams(l.t.Context(), stream)

			datagrams, err := net.ListenPacket("udp", at)
			if err != nil {
				return err
			}
			l.t.Cleanup(func() { datagrams.Close() })
			go serveDatagrams(datagrams)
			return nil
		})
	}
}

// serveStreams echoes until ctx ends.
func serveStreams(ctx context.Context, l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		context.AfterFunc(ctx, func() { c.Close() })
		go func() {
			_, _ = io.Copy(c, c)
			c.Close()
		}()
	}
}

func (l *lab) drops() (counts map[string]uint64) {
	l.t.Helper()
	l.node.Run(l.t, func() (err error) {
		counts, err = nftables.Drops()
		return err
	})
	return counts
}

func serveDatagrams(c net.PacketConn) {
	b := make([]byte, 2000)
	for {
		n, from, err := c.ReadFrom(b)
		if err != nil {
			return
		}
		_, _ = c.WriteTo(b[:n], from)
	}
}

// answered reports whether a query of a pod to the resolver is answered. If an answer is expected,
// it repeats the query, because the kernel adds the route to a new IPv6 address later.
func (l *lab) answered(pod int, network string, at netip.AddrPort, want bool) (answered bool) {
	l.t.Helper()
	for end := time.Now().Add(waitFor(want)); !answered; {
		l.pods[pod].Run(l.t, func() (err error) {
			answered, err = query(network, at)
			return deadlineOnly(err)
		})
		if time.Now().After(end) {
			break
		}
	}
	return answered
}

// query reports whether one query is answered in time.
func query(network string, at netip.AddrPort) (bool, error) {
	c, err := net.DialTimeout(network, at.String(), 2*patience)
	if err != nil {
		return false, err
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(2 * patience))
	if _, err := fmt.Fprint(c, "query"); err != nil {
		return false, err
	}
	n, err := c.Read(make([]byte, 100))
	return n == len("query"), err
}

// deadlineOnly returns err, or nil if err is a timeout.
func deadlineOnly(err error) error {
	if silence, ok := errors.AsType[net.Error](err); ok && silence.Timeout() {
		return nil
	}
	return err
}

// NodeLocal DNSCache exempts its own address from conntrack, for UDP and TCP
// (https://github.com/kubernetes/kubernetes/issues/98758).
func TestPodsReachAnUntrackedDNSCacheByBothProtocols(t *testing.T) {
	nft := nettest.NeedProgram(t, "nft")
	l, p := two(t)
	l.run(l.node, nettest.NeedProgram(t, "ip"), "link set lo up")
	var dns []policy.Peer
	for _, a := range caches {
		l.resolver(a)
		dns = append(dns, policy.Peer{Block: &policy.Block{CIDR: netip.PrefixFrom(a, a.BitLen())}})
	}
	p.PutPolicy(policy.Policy{Name: policy.Name{Namespace: "a", Name: "dns"},
		Isolates: [2]bool{false, true},
		Subjects: policy.Selector{{Key: "app", Values: []string{"client"}}},
		Rules: [2][]policy.Rule{nil, {{Peers: dns, Ports: []policy.Port{
			{Proto: policy.TCP, First: 53, Last: 53}, {Proto: policy.UDP, First: 53, Last: 53}}}}}})
	l.apply(p.Plan())

	ask := func(when string, port uint16, pod int, want bool) {
		t.Helper()
		for _, network := range []string{"udp", "tcp"} {
			for _, a := range caches {
				at := netip.AddrPortFrom(a, port)
				if got := l.answered(pod, network, at, want); got != want {
					t.Errorf("%s: pod %d asks %v by %s: answered %t, want %t; drops %v", when, pod, at,
						network, got, want, l.drops())
				}
			}
		}
	}
	// Pod 1 is isolated for ingress only, pod 2 for egress only, and pod 3 is not isolated.
	const server, client, open = 1, 2, 3
	ask("tracked", 53, client, true)

	for _, rule := range []string{"add table inet cache",
		"add chain inet cache pre { type filter hook prerouting priority -300; }",
		"add chain inet cache out { type filter hook output priority -300; }",
		"add rule inet cache pre th dport { 53, 54 } notrack",
		"add rule inet cache out th sport { 53, 54 } notrack"} {
		l.run(l.node, nft, rule)
	}
	for _, pod := range []int{server, client, open} {
		ask("untracked", 53, pod, true)
	}
	ask("untracked", 54, client, false)

	// Each segment is judged, so without the policy's rule an open connection ends at once.
	l.revokedUntracked(p, client)
}

// revokedUntracked checks that an untracked connection of a pod ends when its policy is deleted.
func (l *lab) revokedUntracked(p *planner.Planner, pod int) {
	l.t.Helper()
	s := &stream{}
	l.pods[pod].Run(l.t, func() (err error) {
		s.Conn, err = net.DialTimeout("tcp", netip.AddrPortFrom(caches[0], 53).String(), expectation)
		return err
	})
	l.t.Cleanup(func() { s.Close() })
	if !s.echoes(expectation) {
		l.t.Error("an allowed connection that is not tracked does not go on")
	}

	p.PutPolicy(policy.Policy{Name: policy.Name{Namespace: "a", Name: "dns"},
		Isolates: [2]bool{false, true},
		Subjects: policy.Selector{{Key: "app", Values: []string{"client"}}}})
	l.apply(p.Plan())
	if s.echoes(patience) {
		l.t.Error("a revoked connection that is not tracked goes on")
	}
}
