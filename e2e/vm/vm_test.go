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
	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Minute)
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

// The main job on real nodes: pods on two kubelets talk through the kernels' WireGuard, and the network, watched
// from before the first boot, sees nothing of it. Shaped pods and host ports are in the same network.
func TestPodsTalkEncrypted(t *testing.T) {
	ctx, c := newCluster(t, vm.Options{})
	pods := []*vm.Pod{
		{Name: "a", Node: c.Machines[0]},
		{Name: "b", Node: c.Machines[1], HostPort: 17000},
		{Name: "shaped", Node: c.Machines[1], Annotations: map[string]string{
			"kubernetes.io/ingress-bandwidth": "10M", "kubernetes.io/egress-bandwidth": "10M"}},
	}
	for _, p := range pods {
		if err := c.RunPod(ctx, p); err != nil {
			t.Fatal(err)
		}
	}
	a := pods[0]
	for _, to := range pods[1:] {
		for _, addr := range to.Addrs {
			for _, proto := range []string{"tcp", "udp"} {
				send(ctx, t, a, proto, netip.AddrPortFrom(addr, lab.EchoPort), to.Name)
			}
		}
	}
	for _, addr := range c.Machines[1].Addrs {
		send(ctx, t, a, "tcp", netip.AddrPortFrom(addr, 17000), "host port of b")
	}
	for _, m := range c.Machines {
		if out, err := m.Exec(ctx, "ip -d link show dev veil0 | grep -w wireguard"); err != nil || len(out) == 0 {
			t.Errorf("%s: the tunnel is not the kernel's: %v", m.Name, err)
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

func send(ctx context.Context, t *testing.T, from *vm.Pod, proto string, to netip.AddrPort, what string) {
	t.Helper()
	sent, err := from.Send(ctx, proto, to, 20)
	if err != nil {
		t.Errorf("%s to %s (%s %s): %v", from.Name, what, proto, to, err)
		return
	}
	t.Logf("%s to %s (%s %s): %.0f ms for %d", from.Name, what, proto, to, sent.Millis, sent.Received)
}
