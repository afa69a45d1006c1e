package vm_test

import (
	"context"
	"log/slog"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/kubeveil/kubeveil/e2e/lab"
	"github.com/kubeveil/kubeveil/e2e/vm"
	"github.com/kubeveil/kubeveil/pkg/nettest"
)

// enableEnv turns the tests of this package on: they take minutes, and a disk that `make cluster-image` makes.
const enableEnv = "KUBEVEIL_VM"

func newCluster(t *testing.T, opts vm.Options) (context.Context, *vm.Cluster) {
	t.Helper()
	nettest.NeedRoot(t)
	if os.Getenv(enableEnv) == "" {
		nettest.Skip(t, nettest.Short, "set "+enableEnv+"=1 to start virtual machines")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 40*time.Minute)
	t.Cleanup(cancel)
	opts.Log = slog.New(slog.NewTextHandler(t.Output(), nil))
	c, err := vm.New(ctx, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return ctx, c
}

// The main job on real nodes, and what suites do to them: pods on two kubelets talk through the kernels' WireGuard, the API server
// reaches pods, machines reboot, join and leave, and the network, watched from before the first boot, sees nothing of it.
func TestCluster(t *testing.T) {
	ctx, c := newCluster(t, vm.Options{Userspace: []int{3}})
	a, b := &vm.Pod{Name: "a", Node: c.Machines[0]}, &vm.Pod{Name: "b", Node: c.Machines[1], HostPort: 17000}
	for _, step := range []struct {
		name string
		run  func(t *testing.T)
	}{
		{"two kinds of containerd", func(t *testing.T) { runtimes(ctx, t, c) }},
		{"the control plane's host is a node", func(t *testing.T) { hostIsNode(ctx, t, c) }},
		{"pods talk", func(t *testing.T) { podsTalk(ctx, t, c, a, b) }},
		{"pods reach the API server by name", func(t *testing.T) { asksAPI(ctx, t, c, a.Name) }},
		{"the API server reaches a pod", func(t *testing.T) { asksWebhook(ctx, t, c, c.Machines[1]) }},
		{"the API server goes and comes", func(t *testing.T) { apiAway(ctx, t, c, a, b) }},
		{"a machine reboots", func(t *testing.T) { reboots(ctx, t, c, a, b) }},
		{"a machine without the module joins and leaves", func(t *testing.T) { joins(ctx, t, c, a) }},
	} {
		if !t.Run(step.name, step.run) {
			break // The others need it.
		}
	}
	result, err := c.Close()
	if err != nil {
		t.Error(err)
	}
	t.Logf("%d frames, %d plaintext: %v", result.Frames, result.Plaintext, result.Kinds)
	if err := result.Err(); err != nil {
		t.Error(err)
	}
	if result.Kinds["tunnel"] == 0 {
		t.Error("the oracle saw no tunnel packet")
	}
}

// podsTalk sends both protocols and families between pods of two nodes, shaped ones and host ports among them.
func podsTalk(ctx context.Context, t *testing.T, c *vm.Cluster, a, b *vm.Pod) {
	shaped := &vm.Pod{Name: "shaped", Node: c.Machines[1], Annotations: map[string]string{
		"kubernetes.io/ingress-bandwidth": "10M", "kubernetes.io/egress-bandwidth": "10M"}}
	for _, p := range []*vm.Pod{a, b, shaped} {
		if err := c.RunPod(ctx, p); err != nil {
			t.Fatal(err)
		}
	}
	for _, to := range []*vm.Pod{b, shaped} {
		for _, addr := range to.Addrs {
			for _, proto := range []string{"tcp", "udp"} {
				send(ctx, t, a, proto, netip.AddrPortFrom(addr, lab.EchoPort), to.Name)
			}
		}
	}
	for _, addr := range b.Node.Addrs {
		send(ctx, t, a, "tcp", netip.AddrPortFrom(addr, uint16(b.HostPort)), "host port of b")
	}
	for _, m := range c.Machines {
		if out, err := m.Exec(ctx, "ip -d link show dev veil0 | grep -w wireguard"); err != nil || len(out) == 0 {
			t.Errorf("%s: the tunnel is not the kernel's: %v", m.Name, err)
		}
	}
}

func send(ctx context.Context, t *testing.T, from *vm.Pod, proto string, to netip.AddrPort, what string) {
	t.Helper()
	sent, err := from.Send(ctx, proto, to, 20)
	if err != nil {
		t.Errorf("%s to %s (%s %s): %v", from.Name, what, proto, to, err)
		return
	}
	t.Logf("%s to %s (%s %s): %.0f ms for %d", from.Name, what, proto, to, sent.Millis, sent.Received)
}
