package demo

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"syscall"
	"time"

	"github.com/kubeveil/kubeveil/e2e/lab"
	"github.com/kubeveil/kubeveil/e2e/lab/traffic"
	"github.com/kubeveil/kubeveil/internal/netns"
	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/bench/report"
	"github.com/kubeveil/kubeveil/pkg/cluster"
	"github.com/kubeveil/kubeveil/pkg/telemetry/admin"
	"github.com/kubeveil/kubeveil/pkg/wgkey"
)

// refused runs the forbidden attempts on Kubeveil's network, while the oracle watches. It records
// whether each was blocked.
func (d *demo) refused(ctx context.Context) error {
	pod, node := d.ours.pods[0], d.ours.lab.Nodes()[0]
	other := d.ours.pods[1].Addr(false)
	prefix := node.PodPrefixes[0].Addr().As4()
	victim := netip.AddrFrom4([4]byte{prefix[0], prefix[1], prefix[2], 200})
	unknown := netip.AddrFrom4([4]byte{prefix[0], prefix[1], 200, 9})
	payload := []byte(d.ours.lab.Canary)

	if err := d.counted(ctx, node, report.Refusal{What: "A pod sends from an address that is " +
		"not its own", Want: "dropped at the pod's link"}, "pod_spoofed_source", func() error {
		if _, err := pod.Exec(ctx, "ip", "address", "add", victim.String()+"/32", "dev",
			"lo"); err != nil {
			return err
		}
		return send(pod.NetNS(), netip.AddrPortFrom(victim, 0),
			netip.AddrPortFrom(other, traffic.EchoPort), payload)
	}); err != nil {
		return err
	}

	if err := d.unknown(ctx, node, pod, unknown); err != nil {
		return err
	}

	if err := d.counted(ctx, node,
		report.Refusal{What: "An administrator routes a pod's address past the " +
			"tunnel by hand", Want: "dropped at the node's link"}, "dst_in_range", func() error {
			// This route is more specific than the route into the tunnel.
			route := fmt.Sprintf("%s/32 via %s dev eth0", other, d.ours.lab.Nodes()[1].Addrs[0])
			if err := node.IP(ctx, "route add "+route); err != nil {
				return err
			}
			defer func() { _ = node.IP(ctx, "route del "+route) }()
			return send(node.NetNS(), netip.AddrPort{}, netip.AddrPortFrom(other, traffic.EchoPort),
				payload)
		}); err != nil {
		return err
	}

	if err := d.named(ctx); err != nil {
		return err
	}
	if err := d.policy(ctx); err != nil {
		return err
	}
	if err := d.linked(ctx); err != nil {
		return err
	}
	// Run this last, because the forged nodes stay. policy restarts a veild, which would have to
	// refuse them again.
	return d.forged(ctx, node)
}

// forged announces nodes that claim the key, the addresses or the pod prefixes of the second node.
// It records whether the first node refuses each of them and still reaches the second node.
func (d *demo) forged(ctx context.Context, node *lab.Node) error {
	victim := d.ours.lab.Nodes()[1]
	s, err := admin.Fetch(ctx, victim.Path(abi.AdminSocket))
	if err != nil {
		return err
	}

	family := d.ours.lab.Family()
	free := func(host byte) (addrs []netip.Addr) {
		for _, p := range family.Underlay(host) {
			addrs = append(addrs, p.Addr())
		}
		return addrs
	}
	row := "A forged row of the snapshot"
	if d.api {
		row = "A forged Node with its VeilNode"
	}

	for _, f := range []struct {
		what string
		node cluster.Node
		key  wgkey.Public
	}{
		{"key", cluster.Node{Name: "forged-key", Addresses: free(200),
			PodPrefixes: family.PodPrefixes(40)}, s.Devices[0].PublicKey},
		{"addresses", cluster.Node{Name: "forged-addresses", Addresses: victim.Addrs,
			PodPrefixes: family.PodPrefixes(41)}, wgkey.Public{31: 1}},
		{"pod prefixes", cluster.Node{Name: "forged-prefixes", Addresses: free(201),
			PodPrefixes: victim.PodPrefixes}, wgkey.Public{31: 2}},
	} {
		claim := &cluster.Claim{Keys: []cluster.Key{{Public: f.key}},
			PodPrefixes: f.node.PodPrefixes}
		for _, a := range f.node.Addresses {
			claim.Endpoints = append(claim.Endpoints, netip.AddrPortFrom(a, abi.TunnelPort))
		}
		f.node.Claim = claim
		if err := d.ours.lab.Announce(ctx, f.node); err != nil {
			return err
		}
		r := report.Refusal{What: fmt.Sprintf("%s claims the %s of %s", row, f.what, victim.Name),
			Want: "refused; traffic goes on"}
		r.Got, r.OK = d.outcome(ctx, node, f.node.Name)
		d.note(r)
	}

	return ctx.Err()
}

// outcome waits until node refuses the claim of claimant. Then it checks that pods still exchange
// messages. It returns the result for the report, and whether both succeeded.
func (d *demo) outcome(ctx context.Context, node *lab.Node, claimant string) (got string, ok bool) {
	err := lab.Until(ctx, 10*time.Second, func() error {
		s, err := admin.Fetch(ctx, node.Path(abi.AdminSocket))
		if err != nil {
			return err
		}
		i := slices.IndexFunc(s.Refused, func(r cluster.Refusal) bool { return r.Node == claimant })
		if i < 0 {
			return errors.New("not refused")
		}
		got = "refused: " + s.Refused[i].Reason
		return nil
	})
	if err != nil {
		return err.Error(), false
	}
	if _, err := d.messagesTo(ctx, d.ours.pods[0], d.ours.pods[1].Addrs); err != nil {
		return fmt.Sprintf("%s; then: %v", got, err), false
	}
	return got, true
}

// unknown connects from the pod to an address of the cluster that no node has. The pod's own node
// resets the connection at once (pkg/guard/chains). The node has no route to the address for pods,
// so no other host can have sent the reset.
func (d *demo) unknown(ctx context.Context, node *lab.Node, pod *lab.Pod, to netip.Addr) error {
	refused := netns.Do(pod.NetNS(), func() error {
		c, err := net.DialTimeout("tcp", netip.AddrPortFrom(to, traffic.EchoPort).String(),
			5*time.Second)
		if err != nil {
			return err
		}
		return c.Close()
	})
	out, routed := node.Exec(ctx, "ip", "route", "get", to.String(), "mark",
		fmt.Sprint(abi.PodMark))
	r := report.Refusal{What: "A pod connects to an address of the cluster that no node has",
		Want: "refused by its own node, at once", Got: "connected"}
	switch {
	case routed == nil:
		r.Got = fmt.Sprintf("there is a route: %s", out)
	case refused != nil:
		r.Got, r.OK = fmt.Sprintf("%v; no route", refused), errors.Is(refused, syscall.ECONNREFUSED)
	}
	d.note(r)
	return ctx.Err()
}

// note adds an attempt and its result to the report.
func (d *demo) note(r report.Refusal) {
	d.report.Refused = append(d.report.Refused, r)
	d.say("%s: %s", r.What, r.Got)
}

// counted runs attempt and records whether the guard's drop counter named reason grows.
func (d *demo) counted(ctx context.Context, n *lab.Node, r report.Refusal, reason string,
	attempt func() error) error {
	before, err := drops(ctx, n, reason)
	if err != nil {
		return err
	}
	refused := attempt()
	err = lab.Until(ctx, 5*time.Second, func() error {
		now, err := drops(ctx, n, reason)
		if err != nil {
			return err
		}
		if now <= before {
			return errors.New("not counted")
		}
		r.Got, r.OK = fmt.Sprintf("dropped, %s +%d", reason, now-before), true
		return nil
	})
	if err != nil {
		r.Got = fmt.Sprintf("%s: %v; the attempt itself: %v", reason, err, refused)
	}
	d.note(r)
	return ctx.Err()
}

// drops returns the guard's drop counter named reason on a node.
func drops(ctx context.Context, n *lab.Node, reason string) (uint64, error) {
	s, err := admin.Fetch(ctx, n.Path(abi.AdminSocket))
	if err != nil {
		return 0, err
	}
	var sum uint64
	for _, d := range s.Guard.Drops {
		if d.Name == reason {
			sum += d.Packets
		}
	}
	return sum, nil
}

// send sends one datagram from the network namespace ns. With a zero from the kernel chooses the
// source.
func send(ns string, from, to netip.AddrPort, payload []byte) error {
	return netns.Do(ns, func() error {
		var local *net.UDPAddr
		if from.IsValid() {
			local = net.UDPAddrFromAddrPort(from)
		}
		c, err := net.DialUDP("udp", local, net.UDPAddrFromAddrPort(to))
		if err != nil {
			return err
		}
		defer c.Close()
		_, err = c.Write(payload)
		return err
	})
}
