package demo

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"time"

	"github.com/kubeveil/kubeveil/e2e/lab"
	"github.com/kubeveil/kubeveil/e2e/lab/traffic"
	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/bench/report"
	"github.com/kubeveil/kubeveil/pkg/telemetry"
)

// named routes the address of another node's pod past the tunnel, and sends there from a pod. It
// records what veilctl drops shows about the packet: who sent it, where it went, and when.
func (d *demo) named(ctx context.Context) error {
	pod, node, other := d.ours.pods[0], d.ours.lab.Nodes()[0], d.ours.pods[1]
	to := other.Addr(false)
	for _, table := range []string{"main", fmt.Sprint(abi.TablePod)} {
		route := fmt.Sprintf("%s/32 via %s dev eth0 table %s metric 1", to, other.Node.Addrs[0], table)
		if err := node.IP(ctx, "route add "+route); err != nil {
			return err
		}
		defer func() { _ = node.IP(ctx, "route del "+route) }()
	}

	began := time.Now()
	if err := send(pod.NetNS(), netip.AddrPort{}, netip.AddrPortFrom(to, traffic.EchoPort),
		[]byte(d.ours.lab.Canary)); err != nil {
		return err
	}
	r := report.Refusal{What: "A route leads a pod's address past the tunnel, and a pod sends there",
		Want: "dropped; veilctl drops names who, where and when within 2 s"}
	err := lab.Until(ctx, 2*time.Second, func() error {
		out, err := node.Exec(ctx, d.ours.lab.Program("veilctl"), "drops", "-o", "json")
		if err != nil {
			return err
		}
		for line := range bytes.Lines(out) {
			var p telemetry.DroppedPacket
			if err := json.Unmarshal(line, &p); err != nil {
				return err
			}
			if p.Dst == to && p.Out == "eth0" && !p.Time.Before(began) {
				r.Got = fmt.Sprintf("%s, by %s of %s, to %s port %d of %s, at %s: dropped, %s", p.SrcPod,
					p.Out, node.Name, p.Dst, p.DstPort, p.Peer, p.Time.UTC().Format("15:04:05.000 UTC"),
					p.Reason)
				r.OK = p.SrcPod == namespace+"/"+podName(node) && p.Peer == other.Node.Name &&
					p.Reason == "pod_to_range"
				return nil
			}
		}
		return fmt.Errorf("veilctl drops does not show the packet:\n%s", out)
	})
	if err != nil {
		r.Got = err.Error()
	}
	d.note(r)
	return ctx.Err()
}
