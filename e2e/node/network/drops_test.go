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
	"github.com/kubeveil/kubeveil/pkg/telemetry"
)

// One packet of each kind is dropped, and veilctl drops names it with its pod and reason. What is
// dropped while veild is away is named as a gap.
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

	nodetest.KillProgram(ctx, t, n1, "veild")
	send(peer.Addr(false), 4100)
	nodetest.StartProgram(ctx, t, n1, "veild")
	nodetest.WaitReady(ctx, t, n1)
	nodetest.VeilctlSays(ctx, t, l, n1, "drops", "when veild began", "packets were dropped")

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

// dropped waits for two seconds until veilctl drops shows a packet that is wanted.
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
