package network_test

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kubeveil/kubeveil/e2e/lab"
	"github.com/kubeveil/kubeveil/e2e/lab/traffic"
	"github.com/kubeveil/kubeveil/e2e/node/nodetest"
	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/filetest"
	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/cluster"
	"github.com/kubeveil/kubeveil/pkg/telemetry"
	"github.com/kubeveil/kubeveil/pkg/wgkey"
)

// forgery is a node that claims a key, addresses or prefixes of other nodes.
type forgery struct {
	cluster.Node
	// incumbent is the node that keeps the claimed property; "" if no node has it.
	incumbent string
	// because is a part of the reason of the refusal.
	because string
}

// forgeries returns the forgeries of a lab. Number i holds the harmless addresses 198.18.0.(200+i),
// and pod prefixes of nodes that do not exist.
func forgeries(l *lab.Lab, victimKey wgkey.Public) []forgery {
	f, n2 := l.Family(), l.Nodes()[1]
	fresh := func(i byte) []netip.Addr {
		var out []netip.Addr
		for _, p := range f.Underlay(200 + i) {
			out = append(out, p.Addr())
		}
		return out
	}
	forge := func(name string, addrs []netip.Addr, prefixes []netip.Prefix, key wgkey.Public,
		claimed []netip.Prefix) cluster.Node {
		claim := &cluster.Claim{Keys: []cluster.Key{{Public: key}}, PodPrefixes: claimed}
		for _, a := range addrs {
			claim.Endpoints = append(claim.Endpoints, netip.AddrPortFrom(a, abi.TunnelPort))
		}
		return cluster.Node{Name: name, Addresses: addrs, PodPrefixes: prefixes, Claim: claim}
	}

	// Each has a key of its own, but for the first.
	own := func(i byte) wgkey.Public { return wgkey.Public{31: i} }
	service := []netip.Addr{f.ServiceRanges()[0].Addr().Next().Next()}
	all := []forgery{
		{forge("a-duplicate-key", fresh(0), f.PodPrefixes(90), victimKey, f.PodPrefixes(90)),
			n2.Name, "public key"},
		{forge("a-stolen-prefix", fresh(1), f.PodPrefixes(91), own(1), n2.PodPrefixes), "",
			"Node.spec.podCIDRs"},
		{forge("a-node-with-anothers-prefix", fresh(2), n2.PodPrefixes, own(2), n2.PodPrefixes),
			n2.Name, "pod prefix"},
		{forge("a-node-with-anothers-address", n2.Addrs, f.PodPrefixes(94), own(4),
			f.PodPrefixes(94)), n2.Name, "node address"},
		{forge("a-service-address", service, f.PodPrefixes(95), own(5), f.PodPrefixes(95)), "",
			"service range"},
		{forge("a-gateway", l.OutsideAddrs(), f.PodPrefixes(96), own(6), f.PodPrefixes(96)), "",
			"gateway"},
	}

	if l.Control != nil {
		// The API names the API server's addresses of one family only (EndpointSlice
		// default/kubernetes).
		all = append(all, forgery{forge("a-worker-as-api-server", l.Control.Addrs()[:1],
			f.PodPrefixes(93), own(3), f.PodPrefixes(93)), "", "API server"})
	}

	return all
}

// refused reports whether a status holds the refusal.
func (f forgery) refused(s telemetry.Status) error {
	for _, r := range s.Refused {
		if r.Node == f.Name && r.Incumbent == f.incumbent && strings.Contains(r.Reason, f.because) {
			return nil
		}
	}
	return fmt.Errorf("%s is not refused for %q in favour of %q: %v", f.Name, f.because,
		f.incumbent, s.Refused)
}

// Forged objects are refused and reported, and the node that has the claimed property keeps it.
func TestForgedObjects(t *testing.T) {
	ctx, l := nodetest.NewLab(t, lab.Options{})
	pods := nodetest.EchoPods(ctx, t, l)
	nodetest.Meet(ctx, t, pods[0], pods[1])
	nodetest.EchoAt(ctx, t, l.Outside)

	n1, n2 := l.Nodes()[0], l.Nodes()[1]
	reachable(ctx, t, l, pods[0])
	before := settledPeers(ctx, t, n1)
	held := nodetest.Hold(ctx, t, pods[0], pods[1].Addr(false))
	all := forgeries(l, nodetest.NodeStatus(ctx, t, n2).Devices[0].PublicKey)
	for _, f := range all {
		t.Run(f.Name, func(t *testing.T) {
			errtest.Must(t, l.Announce(ctx, f.Node))
			for _, n := range l.Nodes() {
				s := nodetest.WaitStatus(ctx, t, n, 10*time.Second, f.refused)
				loud(ctx, t, n, f)
				if n == n1 {
					incumbents(t, before, s.Peers)
				}
			}
			talk(ctx, t, pods[0], pods[1])
			reachable(ctx, t, l, pods[0])
		})
	}

	for _, snapshot := range []string{"kept", "lost"} {
		t.Run("restart, last good table "+snapshot, func(t *testing.T) {
			if snapshot == "lost" {
				errtest.Must(t, os.Remove(n1.Path(abi.SnapshotFile)))
			}

			restartVeild(ctx, t, n1)
			want := before
			if snapshot == "lost" {
				// No node had the contested addresses: no node gets them, and the node stays a peer
				// without them.
				want = withoutAddrs(before, n2.Addrs)
			}

			for _, f := range all {
				if snapshot == "lost" && slices.Equal(f.Addresses, n2.Addrs) {
					f.incumbent, f.because = "", "belongs to no node"
				}
				incumbents(t, want, nodetest.WaitStatus(ctx, t, n1, 10*time.Second,
					f.refused).Peers)
			}

			talk(ctx, t, pods[0], pods[1])
			reachable(ctx, t, l, pods[0])
		})
	}

	t.Run("deleted", func(t *testing.T) {
		for _, f := range all {
			errtest.Must(t, l.Withdraw(ctx, f.Name))
		}
		// Most Nodes are deleted. veild may wait 10 s for a second list before it accepts that.
		nodetest.WaitStatus(ctx, t, n1, 40*time.Second, func(s telemetry.Status) error {
			if len(s.Refused) > 0 {
				return fmt.Errorf("still refused: %v", s.Refused)
			}
			return nil
		})
	})

	var h traffic.Held
	if err := held.Result(ctx, &h); err != nil {
		t.Errorf("the incumbent's traffic was disturbed: %v", err)
	}

	t.Logf("one connection through it all: %d records, longest gap %.0f ms", h.Records,
		h.MaxGapMillis)
	noSecrets(ctx, t, l, nil)
	nodetest.NoLeaks(t, l)
}

// settledPeers returns the peers of a node that has the keys of all others.
func settledPeers(ctx context.Context, t *testing.T, n *lab.Node) []telemetry.Peer {
	t.Helper()
	return nodetest.WaitStatus(ctx, t, n, 10*time.Second, func(s telemetry.Status) error {
		for _, p := range s.Peers {
			if p.State == telemetry.PeerKeyless {
				return fmt.Errorf("%s has no key yet", p.Name)
			}
		}
		return nil
	}).Peers
}

// loud checks that the log and the metrics contain a refusal.
func loud(ctx context.Context, t *testing.T, n *lab.Node, f forgery) {
	t.Helper()
	log := filetest.Read(t, n.Program("veild").Stderr)
	if !slices.ContainsFunc(strings.Split(string(log), "\n"), func(line string) bool {
		return strings.Contains(line, "claim refused") && strings.Contains(line, f.Name) &&
			strings.Contains(line, f.because)
	}) {
		t.Errorf("the log of %s does not name the refusal of %s", n.Name, f.Name)
	}
	if want := fmt.Sprintf("kubeveil_claims_refused{node=%q}",
		f.Name); !strings.Contains(nodeMetrics(ctx, t, n), want) {
		t.Errorf("the metrics of %s lack %s", n.Name, want)
	}
}

// incumbents checks that the peers that were there before are unchanged.
func incumbents(t *testing.T, before, now []telemetry.Peer) {
	t.Helper()
	// A node that lies about an address alone is a peer without it.
	now = slices.DeleteFunc(slices.Clone(now), func(p telemetry.Peer) bool {
		return !slices.ContainsFunc(before, func(b telemetry.Peer) bool { return b.Name == p.Name })
	})
	same := func(a, b telemetry.Peer) bool {
		return a.Name == b.Name && a.PublicKey == b.PublicKey &&
			a.Endpoint.Addr() == b.Endpoint.Addr() && slices.Equal(a.AllowedIPs, b.AllowedIPs)
	}
	if !slices.EqualFunc(before, now, same) {
		t.Errorf("peers changed from %+v to %+v", before, now)
	}
}

// withoutAddrs returns peers without those addresses among their allowed IPs.
func withoutAddrs(peers []telemetry.Peer, addrs []netip.Addr) []telemetry.Peer {
	peers = slices.Clone(peers)
	for i, p := range peers {
		peers[i].AllowedIPs = slices.DeleteFunc(slices.Clone(p.AllowedIPs),
			func(x netip.Prefix) bool {
				return x.IsSingleIP() && slices.Contains(addrs, x.Addr())
			})
	}
	return peers
}

// reachable checks that a pod still reaches the API server and a host outside.
func reachable(ctx context.Context, t *testing.T, l *lab.Lab, p *lab.Pod) {
	t.Helper()
	for _, a := range l.Control.Addrs() {
		if _, err := p.Exec(ctx, "timeout", "5", "bash", "-c",
			fmt.Sprintf("exec 3<>/dev/tcp/%s/6443", a)); err != nil {
			t.Errorf("a pod to the API server: %v", err)
		}
	}
	for _, a := range l.OutsideAddrs() {
		for _, proto := range []string{"tcp", "udp"} {
			if _, err := traffic.Send(ctx, p, traffic.Exchange{Proto: proto, To: a,
				Egress: true}); err != nil {
				t.Errorf("a pod to the outside over %s: %v", proto, err)
			}
		}
	}
}
