package network_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/e2e/lab"
	"github.com/kubeveil/kubeveil/e2e/lab/traffic"
	"github.com/kubeveil/kubeveil/e2e/node/nodetest"
	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/leak"
	"github.com/kubeveil/kubeveil/pkg/telemetry"
)

// relayHost is the last byte of the relay's address, which no Node has.
const relayHost = 200

// relayTime is the time for which the network sends the nodes' datagrams to the relay.
const relayTime = 2 * time.Second

// TestRelayDoesNotBecomeAnEndpoint makes the network hold back the datagrams of two nodes, and a
// host without keys deliver them. With tunnel.roaming, the control, that host becomes the endpoint
// of both.
func TestRelayDoesNotBecomeAnEndpoint(t *testing.T) {
	t.Parallel()
	for _, family := range []lab.Family{lab.IPv4, lab.IPv6} {
		for _, roaming := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, roaming %t", family, roaming), func(t *testing.T) {
				ctx, l := nodetest.NewLab(t, lab.Options{Family: family,
					VeildConfig: map[string]any{
						"tunnel": map[string]any{"roaming": roaming},
					}})
				pods := nodetest.EchoPods(ctx, t, l)
				nodetest.Meet(ctx, t, pods[0], pods[1])
				nodetest.Meet(ctx, t, pods[1], pods[0])

				for _, n := range l.Nodes() {
					judgesSources(ctx, t, n, !roaming)
				}

				relayed(ctx, t, l, pods, roaming)
				if roaming {
					return
				}

				// Nodes accept a node that joins later, and datagrams from its addresses.
				n, err := l.AddNode(ctx)
				if err == nil {
					err = n.WaitReady(ctx)
				}

				errtest.Must(t, err)
				late, err := n.AddPod(ctx, "late", lab.PodOptions{})
				if err == nil {
					_, err = traffic.Echo(ctx, late)
				}
				errtest.Must(t, err)

				for _, p := range pods {
					nodetest.Meet(ctx, t, late, p)
				}

				nodetest.NoLeaks(t, l)
			})
		}
	}
}

// TestTunnelsSendFromANodesAddress adds a second IPv6 address to the link between nodes. The kernel
// prefers it as a source, but no Node has it. Tunnel datagrams leave from the node's address.
func TestTunnelsSendFromANodesAddress(t *testing.T) {
	ctx, l := nodetest.NewLab(t, lab.Options{Family: lab.IPv6, MoreAddresses: true})
	pods := nodetest.EchoPods(ctx, t, l)
	nodetest.Meet(ctx, t, pods[0], pods[1])
	// Until a node is accepted, its datagrams are dropped.
	var before []uint64
	for _, n := range l.Nodes() {
		judgesSources(ctx, t, n, true)
		before = append(before, nodetest.Dropped(ctx, t, n, "tunnel_unknown_source"))
	}
	talk(ctx, t, pods[0], pods[1])
	for i, n := range l.Nodes() {
		if got, want := endpointOf(ctx, t, n), l.Nodes()[1-i].Addrs[0]; got != want {
			t.Errorf("the endpoint on %s is %s, want %s", n.Name, got, want)
		}
		if d := nodetest.Dropped(ctx, t, n, "tunnel_unknown_source") - before[i]; d > 0 {
			t.Errorf("%s dropped %d tunnel datagrams", n.Name, d)
		}
	}
	nodetest.NoLeaks(t, l)
}

// judgesSources waits until a node checks the sources of tunnel datagrams, or does not if want is
// false.
func judgesSources(ctx context.Context, t *testing.T, n *lab.Node, want bool) {
	t.Helper()
	err := lab.Until(ctx, 10*time.Second, func() error {
		out := nodetest.Run(ctx, t, n, "nft", "list", "set", "inet", abi.NFTGuardTable,
			"tunnel_port")
		if got := strings.Contains(out, fmt.Sprint(abi.TunnelPort)); got != want {
			return fmt.Errorf("%s judges sources of tunnel datagrams: %t, want %t: %s", n.Name, got,
				want, out)
		}
		return nil
	})
	errtest.Must(t, err)
}

// endpointOf returns the address of the endpoint of a node's only peer.
func endpointOf(ctx context.Context, t *testing.T, n *lab.Node) netip.Addr {
	t.Helper()
	// Unlimited streams of other labs can keep veild waiting for a CPU.
	s := nodetest.WaitStatus(ctx, t, n, 20*time.Second, func(s telemetry.Status) error {
		if len(s.Peers) != 1 {
			return fmt.Errorf("it has the peers %+v", s.Peers)
		}
		return nil
	})
	return s.Peers[0].Endpoint.Addr()
}

// relayed passes the datagrams of the nodes of two pods to a relay for a while, under traffic both
// ways, and checks their endpoints.
func relayed(ctx context.Context, t *testing.T, l *lab.Lab, pods []*lab.Pod, roaming bool) {
	t.Helper()
	nodes := l.Nodes()
	for i, p := range pods {
		nodetest.Sink(ctx, t, p)
		source := nodetest.Source(ctx, t, pods[1-i], p.Addrs[0], 0)
		defer func() { _ = source.Kill(ctx) }()
	}

	held := nodetest.Hold(ctx, t, pods[0], pods[1].Addrs[0])

	r := newRelay(ctx, t, l)
	seen := map[string]map[netip.Addr]bool{}
	look := func(limit time.Duration) {
		for end := time.Now().Add(limit); time.Now().Before(end); time.Sleep(
			50 * time.Millisecond) {
			for _, n := range nodes[:2] {
				if seen[n.Name] == nil {
					seen[n.Name] = map[netip.Addr]bool{}
				}
				seen[n.Name][endpointOf(ctx, t, n)] = true
			}
		}
	}

	r.begin(ctx, t)
	look(relayTime)
	r.end(ctx, t)
	look(relayTime)

	for i, n := range nodes[:2] {
		if got := seen[n.Name][r.addr]; got != roaming {
			t.Errorf("the relay was the endpoint on %s: %t, want %t", n.Name, got, roaming)
		}
		if roaming {
			continue
		}
		if other := nodes[1-i].Addrs[0]; len(seen[n.Name]) != 1 || !seen[n.Name][other] {
			t.Errorf("endpoints on %s: %v, want %s alone", n.Name, seen[n.Name], other)
		}
		if nodetest.Dropped(ctx, t, n, "tunnel_unknown_source") == 0 {
			t.Errorf("%s counted no datagram of the relay", n.Name)
		}
	}

	if roaming {
		return
	}
	var h traffic.Held
	if err := held.Result(ctx, &h); err != nil {
		t.Errorf("a connection did not outlive the relay: %v", err)
	}

	talk(ctx, t, pods[0], pods[1])
}

// relay is a host that delivers tunnel datagrams of two nodes to each other, from ports of its own.
type relay struct {
	l     *lab.Lab
	nodes []*lab.Node
	addr  netip.Addr
	// towards are its sockets, by the node that they send to.
	towards  []*net.UDPConn
	sniffers []*nettest.Sniffer
}

func newRelay(ctx context.Context, t *testing.T, l *lab.Lab) *relay {
	t.Helper()
	h, err := l.AddHost(ctx, "relay", relayHost)
	errtest.Must(t, err)
	r := &relay{l: l, nodes: l.Nodes()[:2], addr: l.Family().Underlay(relayHost)[0].Addr()}
	l.Oracle.Update(func(rules *leak.Rules) { rules.Nodes = append(rules.Nodes, r.addr) })
	for i := range r.nodes {
		err := h.Do(func() error {
			c, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(r.addr,
				uint16(4441+i))))
			r.towards = append(r.towards, c)
			return err
		})
		errtest.Must(t, err)
		t.Cleanup(func() { r.towards[i].Close() })
	}
	for i := range r.nodes {
		go r.answer(i)
	}
	return r
}

// send delivers a datagram to a node.
func (r *relay) send(to int, payload []byte) error {
	at := netip.AddrPortFrom(r.nodes[to].Addrs[0], abi.TunnelPort)
	_, err := r.towards[to].WriteToUDPAddrPort(payload, at)
	return err
}

// answer delivers a node's datagrams to the relay to the other node, until the socket is closed.
func (r *relay) answer(from int) {
	buf := make([]byte, 1<<16)
	for {
		n, _, err := r.towards[from].ReadFromUDPAddrPort(buf)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err == nil {
			_ = r.send(1-from, buf[:n])
		}
	}
}

// begin makes the network keep the two nodes apart, and delivers their datagrams to each other.
func (r *relay) begin(ctx context.Context, t *testing.T) {
	t.Helper()
	r.apart(ctx, t, "on")
	for from, n := range r.nodes {
		err := r.l.Bridge().Do(func() error {
			s, err := nettest.OpenSniffer(nettest.SnifferOptions{Link: n.Name, Ring: 1 << 22},
				func(f nettest.Frame) {
					if payload := tunnelPayload(f.Data, r.nodes[1-from].Addrs[0]); payload != nil &&
						!f.Outgoing {
						_ = r.send(1-from, payload)
					}
				})
			r.sniffers = append(r.sniffers, s)
			return err
		})
		errtest.Must(t, err)
	}
}

// end connects the two nodes again and stops the relay.
func (r *relay) end(ctx context.Context, t *testing.T) {
	t.Helper()
	for _, s := range r.sniffers {
		if _, err := s.Stop(); err != nil {
			t.Error(err)
		}
	}
	r.apart(ctx, t, "off")
}

// apart isolates the nodes' ports of the bridge from each other, or ends that.
func (r *relay) apart(ctx context.Context, t *testing.T, state string) {
	t.Helper()
	for _, n := range r.nodes {
		if err := r.l.Bridge().IP(ctx, fmt.Sprintf("link set %s type bridge_slave isolated %s",
			n.Name, state)); err != nil {
			t.Fatal(err)
		}
	}
}

// tunnelPayload returns the payload of a tunnel datagram to an address, or nil for any other frame.
func tunnelPayload(frame []byte, to netip.Addr) []byte {
	const ethernet, udpHeader = 14, 8
	header, protoAt, dstAt, etherType := 20, 9, 16, uint16(unix.ETH_P_IP)
	if to.Is6() {
		header, protoAt, dstAt, etherType = 40, 6, 24, unix.ETH_P_IPV6
	}
	if len(frame) < ethernet+header+udpHeader || binary.BigEndian.Uint16(frame[12:]) != etherType {
		return nil
	}
	ip := frame[ethernet:]
	udp := ip[header:]
	length := int(binary.BigEndian.Uint16(udp[4:]))
	if ip[protoAt] != unix.IPPROTO_UDP ||
		!slices.Equal(ip[dstAt:dstAt+to.BitLen()/8], to.AsSlice()) ||
		binary.BigEndian.Uint16(udp[2:]) != abi.TunnelPort || length < udpHeader ||
		length > len(udp) {
		return nil
	}
	return udp[udpHeader:length]
}
