package network_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubeveil/kubeveil/e2e/lab"
	"github.com/kubeveil/kubeveil/e2e/lab/traffic"
	"github.com/kubeveil/kubeveil/e2e/node/nodetest"
	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/pkg/telemetry"
)

// One packet of each kind is dropped, and veilctl drops shows it with its pod and reason. For
// packets that are dropped while veild does not run, the samples of BPF programs are kept. The
// output counts the others.
func TestDroppedPacketsAreNamed(t *testing.T) {
	ctx, l := nodetest.NewLab(t, lab.Options{NoAPIServer: true})
	n1 := l.Nodes()[0]
	web, err := n1.AddPod(ctx, "web", lab.PodOptions{Object: &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web-0", UID: "uid-of-web-0"}}})
	if err != nil {
		t.Fatal(err)
	}
	peer := nodetest.EchoPod(ctx, t, l.Nodes()[1], "echo")
	nodetest.EchoAt(ctx, t, web)
	nodetest.Meet(ctx, t, web, peer)

	own, _ := nodetest.LinkOf(ctx, t, web, "eth0")
	gateway := nodetest.GatewayOf(ctx, t, web)
	send := func(src netip.Addr, port uint16) {
		t.Helper()
		nodetest.Inject(ctx, t, web, "eth0", nodetest.Datagram{From: own, To: gateway, Src: src,
			Dst: peer.Addr(src.Is6()), SrcPort: port, DstPort: traffic.SinkPort,
			Payload: []byte("01234567" + l.Canary)}.Frame())
	}
	for i, src := range []netip.Addr{peer.Addr(false), peer.Addr(true),
		netip.MustParseAddr("fe80::1234")} {
		port := uint16(4000 + i)
		send(src, port)
		dropped(ctx, t, l, n1, "--pod shop/web-0", func(p telemetry.DroppedPacket) bool {
			return p.Reason == "pod_spoofed_source" && p.SrcPod == "shop/web-0" && p.Src == src &&
				p.Dst == peer.Addr(src.Is6()) && p.SrcPort == port &&
				p.DstPort == traffic.SinkPort && p.Protocol == "udp" &&
				p.Peer == l.Nodes()[1].Name
		})
	}

	// A route bypasses the tunnel. At the drop, the source is already the node's own address, so
	// the pod follows from the link.
	routes := pastRoutes(peer, "eth0")
	errtest.Must(t, n1.IP(ctx, routes...))
	send(web.Addr(false), 4300)
	dropped(ctx, t, l, n1, "--pod shop/web-0", func(p telemetry.DroppedPacket) bool {
		return p.Reason == "pod_to_range" && p.SrcPod == "shop/web-0" && p.Out == "eth0" &&
			p.Dst == peer.Addr(false) && p.DstPort == traffic.SinkPort &&
			p.Peer == l.Nodes()[1].Name
	})
	removeRoutes(ctx, t, n1, routes)

	hw := secretCable(ctx, t, l, n1, "eth9", "hostile")
	guarded(ctx, t, n1, "eth9")
	from, _ := nodetest.LinkOf(ctx, t, l.Outside, "hostile")
	// forge sends a datagram to the node from outside, with an address of a pod.
	forge := func(port uint16) (wanted func(telemetry.DroppedPacket) bool) {
		t.Helper()
		src, dst := web.Addr(false), n1.Addrs[0]
		nodetest.Inject(ctx, t, l.Outside, "hostile", nodetest.Datagram{From: from, To: hw,
			Src: src, Dst: dst, SrcPort: port, DstPort: traffic.SinkPort,
			Payload: []byte("01234567" + l.Canary)}.Frame())
		return func(p telemetry.DroppedPacket) bool {
			return p.Reason == "src_in_range" && p.In == "eth9" && p.SrcPod == "" && p.Src == src &&
				p.Dst == dst && p.SrcPort == port && p.DstPort == traffic.SinkPort &&
				p.Protocol == "udp"
		}
	}
	dropped(ctx, t, l, n1, "--reason src_in_range", forge(4200))

	nodetest.KillProgram(ctx, t, n1, "veild")
	send(peer.Addr(false), 4100)
	waiting := forge(4201)
	nodetest.StartProgram(ctx, t, n1, "veild")
	nodetest.WaitReady(ctx, t, n1)
	dropped(ctx, t, l, n1, "--reason src_in_range", waiting)
	nodetest.VeilctlSays(ctx, t, l, n1, "drops", "veild began at", "packets dropped earlier")

	_, err = n1.Exec(ctx, l.Program("veilctl"), "drops", "--reason", "spoofed")
	if err == nil || !strings.Contains(err.Error(), "pod_spoofed_source") {
		t.Errorf("an unknown reason: %v", err)
	}
	_, err = n1.Exec(ctx, l.Program("veilctl"), "drops", "--pod", "shop/web")
	if err == nil || !strings.Contains(err.Error(), "shop/web-0") {
		t.Errorf("an unknown pod: %v", err)
	}
	noSecrets(ctx, t, l, nil)
	nodetest.NoLeaks(t, l)
}

// dropped waits for at most two seconds until veilctl drops shows a wanted packet.
func dropped(ctx context.Context, t *testing.T, l *lab.Lab, n *lab.Node, args string,
	wanted func(telemetry.DroppedPacket) bool) {
	t.Helper()
	err := lab.Until(ctx, 2*time.Second, func() error {
		out, err := n.Exec(ctx, l.Program("veilctl"),
			strings.Fields("drops -o json "+args)...)
		if err != nil {
			return err
		}
		lines := bufio.NewScanner(bytes.NewReader(out))
		for lines.Scan() {
			var p telemetry.DroppedPacket
			if err := json.Unmarshal(lines.Bytes(), &p); err != nil {
				return err
			}
			if wanted(p) {
				return nil
			}
		}
		return fmt.Errorf("veilctl drops %s shows\n%s", args, out)
	})
	if err != nil {
		t.Error(err)
	}
}
