package vm_test

import (
	"context"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/kubeveil/kubeveil/e2e/lab/traffic"
	"github.com/kubeveil/kubeveil/e2e/vm"
	"github.com/kubeveil/kubeveil/e2e/vm/vmtest"
	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/pkg/config"
	"github.com/kubeveil/kubeveil/pkg/leak"
)

func newCluster(t *testing.T, opts vm.ClusterConfig) (context.Context, *vm.Cluster) {
	t.Helper()
	vmtest.Need(t)
	ctx, cancel := context.WithTimeout(t.Context(), 40*time.Minute)
	t.Cleanup(cancel)
	return ctx, vmtest.New(ctx, t, opts)
}

// The cluster has never had a kube-proxy. Each veild finds the API server by its service, and
// services are translated at the sockets of pods, of the nodes and of the control plane. Other
// tests cover the rest: `make e2e` the reachability with kube-proxy, and the upstream's tests
// (conformance --service-proxy ebpf) all rules of services.
func TestServicesWithoutKubeProxy(t *testing.T) {
	ctx, c := newCluster(t, vm.ClusterConfig{ServiceProxy: config.ServiceProxyEBPF})
	a, limited := &vm.Pod{Name: "a", Node: c.Machines[0]},
		&vm.Pod{Name: "limited", Node: c.Machines[1], Annotations: map[string]string{
			"kubernetes.io/ingress-bandwidth": "10M", "kubernetes.io/egress-bandwidth": "10M"}}
	for _, step := range []struct {
		name string
		run  func(t *testing.T)
	}{
		{"only Kubeveil translates", func(t *testing.T) { withoutKubeProxy(ctx, t, c) }},
		// On these kernels a bandwidth limit and the programs at a pod's link need the same qdisc.
		{"a pod with limits talks", func(t *testing.T) { podsTalk(ctx, t, c, a, limited) }},
		{"pods reach the API server by name",
			func(t *testing.T) { asksAPI(ctx, t, c, a.Name, limited.Name) }},
		{"the API server reaches a pod by its service",
			func(t *testing.T) { asksWebhook(ctx, t, c, c.Machines[1]) }},
	} {
		if !t.Run(step.name, step.run) {
			break // The other cases need the result of this case.
		}
	}

	result, err := c.Close()
	if err != nil {
		t.Error(err)
	}

	t.Logf("%d frames, %d plaintext: %v", result.Frames, result.Plaintext, result.Kinds)
	errtest.Check(t, result.Err())
	if result.Kinds[leak.Tunnel] == 0 {
		t.Error("the oracle saw no tunnel packet")
	}
}

// withoutKubeProxy checks that no node has a kube-proxy or leftovers of a kube-proxy.
func withoutKubeProxy(ctx context.Context, t *testing.T, c *vm.Cluster) {
	if out, err := c.Kubectl(ctx, "get", "daemonsets,pods,configmaps", "--namespace=kube-system",
		"-o", "name"); err != nil || strings.Contains(string(out), "kube-proxy") {
		t.Errorf("objects: %v\n%s", err, out)
	}
	for _, name := range []string{"control", c.Machines[0].Name, c.Machines[1].Name} {
		out, err := c.Exec(ctx, name, "cat /proc/[0-9]*/comm 2>/dev/null; nft list tables")
		if err != nil || !strings.Contains(string(out), "veild") ||
			strings.Contains(string(out), "kube-proxy") {
			t.Errorf("%s: %v: want veild and no kube-proxy in\n%s", name, err, out)
		}
	}
}

// podsTalk sends messages in both protocols and families from one pod to another pod on another
// node.
func podsTalk(ctx context.Context, t *testing.T, c *vm.Cluster, a, b *vm.Pod) {
	for _, p := range []*vm.Pod{a, b} {
		errtest.Must(t, c.RunPod(ctx, p))
	}
	if len(b.Addrs) != 2 {
		t.Errorf("%s has %v, want an address of each family", b.Name, b.Addrs)
	}
	for _, addr := range b.Addrs {
		for _, proto := range []string{"tcp", "udp"} {
			send(ctx, t, a, proto, netip.AddrPortFrom(addr, traffic.EchoPort), b.Name)
		}
	}
}

func send(ctx context.Context, t *testing.T, from *vm.Pod, proto string, to netip.AddrPort,
	what string) {
	t.Helper()
	sent, err := from.Send(ctx, proto, to, 20)
	if err != nil {
		t.Errorf("%s to %s (%s %s): %v", from.Name, what, proto, to, err)
		return
	}
	t.Logf("%s to %s (%s %s): %.0f ms for %d", from.Name, what, proto, to, sent.Millis,
		sent.Received)
}
