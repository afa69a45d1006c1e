package services_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/kubeveil/kubeveil/e2e/lab"
	"github.com/kubeveil/kubeveil/e2e/lab/traffic"
	"github.com/kubeveil/kubeveil/e2e/node/nodetest"
	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/pkg/config"
	"github.com/kubeveil/kubeveil/pkg/telemetry"
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
			errtest.Must(t, err)
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

// TestChainOfAnotherProgramEndsTheFastPath: with hostRouting auto, pods have the fast path until a
// program adds a chain that judges packets, to pods of their node and, for UDP, to those of other
// nodes. Open connections go on, and the kernel's path stays after a restart of veild, although the
// chain is gone.
func TestChainOfAnotherProgramEndsTheFastPath(t *testing.T) {
	ctx, l := serviceLab(t, config.HostRoutingAuto)
	n := l.Nodes()[0]
	from, to := nodetest.EchoPod(ctx, t, n, "from"), nodetest.EchoPod(ctx, t, n, "to")
	far := nodetest.EchoPod(ctx, t, l.Nodes()[1], "far")
	nodetest.Meet(ctx, t, from, far)
	between := holds(ctx, t, from, to)
	expectMet(ctx, t, "no chain", from, to, false)
	expectMetBy(ctx, t, "no chain", from, far, "udp", false)
	expectMetBy(ctx, t, "no chain", far, to, "udp", false)
	expectMetBy(ctx, t, "no chain", from, far, "tcp", true)
	routing := func(want string, off bool) {
		t.Helper()
		nodetest.WaitStatus(ctx, t, n, 10*time.Second, func(s telemetry.Status) error {
			if s.Services == nil || s.Services.HostRouting != want ||
				strings.Contains(s.Services.FastPathOff, "table inet agent") != off {
				return fmt.Errorf("services %+v, want host routing %s", s.Services, want)
			}
			return nil
		})
	}
	routing(config.HostRoutingEBPF, false)

	// kube-network-policies judges at this hook and priority.
	nodetest.Run(ctx, t, n, "nft", "table inet agent { chain f { type filter hook postrouting "+
		"priority 95; ip daddr 192.0.2.1 drop; }; }")
	routing(config.HostRoutingKernel, true)
	expectMet(ctx, t, "a chain", from, to, true)
	expectMetBy(ctx, t, "a chain", from, far, "udp", true)
	nodetest.Run(ctx, t, n, "nft", "delete", "table", "inet", "agent")
	nodetest.KillProgram(ctx, t, n, "veild")
	nodetest.StartProgram(ctx, t, n, "veild")
	nodetest.WaitReady(ctx, t, n)
	routing(config.HostRoutingKernel, true)
	expectMet(ctx, t, "after a restart", from, to, true)

	for _, p := range between {
		var r traffic.Held
		if err := p.Result(ctx, &r); err != nil || r.MaxGapMillis > 3000 {
			t.Errorf("a connection between pods: %+v, %v", r, err)
		}
	}
	nodetest.NoLeaks(t, l)
}
