package services_test

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/kubeveil/kubeveil/e2e/lab"
	"github.com/kubeveil/kubeveil/e2e/lab/traffic"
	"github.com/kubeveil/kubeveil/e2e/node/nodetest"
	"github.com/kubeveil/kubeveil/pkg/config"
)

// TestConnectionsOutliveSwitchesOfHostRouting: connections from outside and between pods go on when
// host routing ends and begins, and take the path that is configured then.
func TestConnectionsOutliveSwitchesOfHostRouting(t *testing.T) {
	ctx, l := serviceLab(t, config.HostRoutingEBPF)
	n := l.Nodes()[0]
	client, pods := namedPods(ctx, t, l, 1, "web")
	web := pods[0]
	service := publish(ctx, t, l, "web", corev1.ServiceSpec{Type: corev1.ServiceTypeNodePort}, web)
	nodetest.EchoAt(ctx, t, client)
	from := nodetest.AddPod(ctx, t, n, "from")

	outside := func(proto string) (kept []*lab.Process) {
		for _, a := range web.Addrs {
			p, err := traffic.Keep(ctx, l.Outside, traffic.Question{Proto: proto,
				To: nodePort(t, service, n, proto, a.Is6()), Count: 3, Egress: true,
				Timeout: 500 * time.Millisecond})
			if err != nil {
				t.Fatal(err)
			}
			kept = append(kept, p)
		}
		return kept
	}
	kept := append(outside("tcp"), outside("udp")...)
	between := holds(ctx, t, from, client)
	expectMet(ctx, t, "ebpf", from, client, false)

	for _, routing := range []string{config.HostRoutingKernel, config.HostRoutingEBPF} {
		nodetest.Reconfigure(ctx, t, n, map[string]any{"services": map[string]any{
			"cgroup": cgroupRoot, "limits": map[string]any{"backendSlots": 1 << 18},
			"hostRouting": routing}})
		nodetest.WaitReady(ctx, t, n)
		expectMet(ctx, t, routing, from, client, routing == config.HostRoutingKernel)
	}

	for _, p := range kept {
		var r traffic.Kept
		if err := p.Result(ctx, &r); err != nil || r.Unanswered > 0 {
			t.Errorf("a connection from outside: %+v, %v", r, err)
		}
	}
	for _, p := range between {
		var r traffic.Held
		if err := p.Result(ctx, &r); err != nil || r.MaxGapMillis > 3000 {
			t.Errorf("a connection between pods: %+v, %v", r, err)
		}
	}
	nodetest.NoLeaks(t, l)
}
