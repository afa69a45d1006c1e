package network_test

import (
	"context"
	"net/netip"
	"strings"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubeveil/kubeveil/e2e/lab"
	"github.com/kubeveil/kubeveil/e2e/lab/traffic"
	"github.com/kubeveil/kubeveil/e2e/node/nodetest"
	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/pkg/telemetry"
)

// dropCases sends single datagrams that a node drops. web is a pod of the node, and peer a pod of
// another node.
type dropCases struct {
	*lab.Lab
	node      *lab.Node
	web, peer *lab.Pod
	// port is the source port of the last datagram. Each has its own.
	port uint16
}

// send sends a datagram from the link of web and returns its source port.
func (d *dropCases) send(ctx context.Context, t *testing.T, src, dst netip.Addr) uint16 {
	t.Helper()
	own, _ := nodetest.LinkOf(ctx, t, d.web, "eth0")
	return d.inject(ctx, t, d.web, "eth0", nodetest.Datagram{From: own,
		To: nodetest.GatewayOf(ctx, t, d.web), Src: src, Dst: dst})
}

func (d *dropCases) inject(ctx context.Context, t *testing.T, at traffic.Place, link string,
	p nodetest.Datagram) uint16 {
	t.Helper()
	d.port++
	p.SrcPort, p.DstPort, p.Payload = d.port, traffic.SinkPort, []byte("01234567"+d.Canary)
	nodetest.Inject(ctx, t, at, link, p.Frame())
	return d.port
}

// shown checks that veilctl drops shows the datagram of web with this source port, and with this
// reason, source, destination and peer node. The peer is "" for addresses outside the cluster.
func (d *dropCases) shown(ctx context.Context, t *testing.T, reason string, port uint16,
	src, dst netip.Addr, peer string) {
	t.Helper()
	nodetest.ShowsDrop(ctx, t, d.Lab, d.node, "--pod shop/web-0",
		func(p telemetry.DroppedPacket) bool {
			return p.Reason == reason && p.SrcPod == "shop/web-0" && p.Src == src && p.Dst == dst &&
				p.SrcPort == port && p.DstPort == traffic.SinkPort && p.Protocol == "udp" &&
				p.Peer == peer
		})
}

// One packet of each kind is dropped, and veilctl drops shows it with its pod and reason. For
// packets that are dropped while veild does not run, the samples of BPF programs are kept. The
// output counts the others.
func TestDroppedPacketsAreNamed(t *testing.T) {
	ctx, l := nodetest.NewLab(t, lab.Options{NoAPIServer: true, VeildConfig: map[string]any{
		"nodeRanges": nodeNetworks(lab.Dual), "outside": []netip.Prefix{}}})
	d := &dropCases{Lab: l, node: l.Nodes()[0], port: 4000}
	var err error
	d.web, err = d.node.AddPod(ctx, "web", lab.PodOptions{Object: &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web-0", UID: "uid-of-web-0"}}})
	errtest.Must(t, err)
	d.peer = nodetest.EchoPod(ctx, t, l.Nodes()[1], "echo")
	nodetest.EchoAt(ctx, t, d.web)
	nodetest.Meet(ctx, t, d.web, d.peer)

	for _, src := range []netip.Addr{d.peer.Addr(false), d.peer.Addr(true),
		netip.MustParseAddr("fe80::1234")} {
		dst := d.peer.Addr(src.Is6())
		port := d.send(ctx, t, src, dst)
		d.shown(ctx, t, "pod_spoofed_source", port, src, dst, d.peer.Node.Name)
	}
	d.pastTheTunnel(ctx, t)
	d.deletedNode(ctx, t)
	d.flushed(ctx, t)
	d.whileAway(ctx, t)

	for args, want := range map[string]string{"--reason spoofed": "pod_spoofed_source",
		"--pod shop/web": "shop/web-0"} {
		_, err = d.node.Exec(ctx, l.Program("veilctl"), strings.Fields("drops "+args)...)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", args, err)
		}
	}
	out := nodetest.Run(ctx, t, d.node, l.Program("veilctl"), "drops", "-o", "json")
	if strings.Contains(out, d.Canary) {
		t.Error("veilctl drops shows payload")
	}
	noSecrets(ctx, t, l, nil)
	nodetest.NoLeaks(t, l)
}

// pastTheTunnel adds routes that bypass the tunnel. At the drop, the source is already the node's
// own address, so the pod follows from the link.
func (d *dropCases) pastTheTunnel(ctx context.Context, t *testing.T) {
	t.Helper()
	routes := pastRoutes(d.peer, "eth0")
	errtest.Must(t, d.node.IP(ctx, routes...))
	for i, to := range d.peer.Addrs {
		port := d.send(ctx, t, d.web.Addrs[i], to)
		d.shown(ctx, t, "pod_to_range", port, d.node.Addrs[i], to, d.peer.Node.Name)
	}
	removeRoutes(ctx, t, d.node, routes)
}

// deletedNode opens connections to a deleted node. With `outside` configured, there is no route to
// its addresses, so the pod gets a reset.
func (d *dropCases) deletedNode(ctx context.Context, t *testing.T) {
	t.Helper()
	for _, to := range deletedNode(ctx, t, d.Lab) {
		_, err := traffic.Send(ctx, d.web, traffic.Exchange{Proto: "tcp", To: to, Count: 1})
		if err == nil || !strings.Contains(err.Error(), "connection refused") {
			t.Errorf("to the deleted node %s: %v", to, err)
		}
		nodetest.ShowsDrop(ctx, t, d.Lab, d.node, "--pod shop/web-0",
			func(p telemetry.DroppedPacket) bool {
				return p.Reason == "pod_no_route" && p.SrcPod == "shop/web-0" && p.Dst == to &&
					p.Src == d.web.Addr(to.Is6()) && p.DstPort == traffic.EchoPort &&
					p.Protocol == "tcp"
			})
	}
}

// flushed sends while nftables is flushed and veild is stopped, so that it repairs nothing. Only
// BPF programs drop the packets then. The second datagram has no mark, and another program
// translates its source. Each is sent by both address families.
func (d *dropCases) flushed(ctx context.Context, t *testing.T) {
	t.Helper()
	outside := d.OutsideAddrs()
	ports := d.sendUnrepaired(ctx, t, outside, func() {})
	for i, to := range outside {
		d.shown(ctx, t, "src_in_range", ports[i], d.web.Addrs[i], to, "")
	}
	nodetest.WaitReady(ctx, t, d.node)

	peer := d.peer.Node
	ports = d.sendUnrepaired(ctx, t, peer.Addrs, func() {
		foreign(ctx, t, d.node, "foreign_masquerade", foreignMasquerade)
	})
	for i, to := range peer.Addrs {
		d.shown(ctx, t, "pod_mark_lost", ports[i], d.node.Addrs[i], to, peer.Name)
	}
	nodetest.WaitReady(ctx, t, d.node)
	nodetest.Run(ctx, t, d.node, "nft", "delete table inet foreign_masquerade")
}

// sendUnrepaired sends a datagram of web to each address of to, while veild is stopped and nftables
// has no rules but those that change adds. It returns the source ports.
func (d *dropCases) sendUnrepaired(ctx context.Context, t *testing.T, to []netip.Addr,
	change func()) (ports []uint16) {
	t.Helper()
	veild := d.node.Program("veild")
	errtest.Must(t, veild.Signal(syscall.SIGSTOP))
	nodetest.Run(ctx, t, d.node, "nft", "flush ruleset")
	change()
	for i, addr := range to {
		ports = append(ports, d.send(ctx, t, d.web.Addrs[i], addr))
	}
	errtest.Must(t, veild.Signal(syscall.SIGCONT))
	return ports
}

// whileAway sends packets with a pod's address from outside, one of them while veild is away.
func (d *dropCases) whileAway(ctx context.Context, t *testing.T) {
	t.Helper()
	hw := secretCable(ctx, t, d.Lab, d.node, "eth9", "hostile")
	guarded(ctx, t, d.node, "eth9")
	from, _ := nodetest.LinkOf(ctx, t, d.Outside, "hostile")
	src, dst := d.web.Addr(false), d.node.Addrs[0]
	forge := func() {
		t.Helper()
		d.inject(ctx, t, d.Outside, "hostile", nodetest.Datagram{From: from, To: hw, Src: src, Dst: dst})
	}
	shown := func() {
		t.Helper()
		nodetest.ShowsDrop(ctx, t, d.Lab, d.node, "--reason src_in_range",
			func(p telemetry.DroppedPacket) bool {
				return p.Reason == "src_in_range" && p.In == "eth9" && p.SrcPod == "" && p.Src == src &&
					p.Dst == dst && p.SrcPort == d.port && p.DstPort == traffic.SinkPort &&
					p.Protocol == "udp"
			})
	}
	forge()
	shown()

	nodetest.KillProgram(ctx, t, d.node, "veild")
	d.send(ctx, t, d.peer.Addr(false), d.peer.Addr(false))
	forge()
	nodetest.StartProgram(ctx, t, d.node, "veild")
	nodetest.WaitReady(ctx, t, d.node)
	shown()
	nodetest.VeilctlSays(ctx, t, d.Lab, d.node, "drops", "veild began at", "packets dropped earlier")
}
