package vm_test

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/kubeveil/kubeveil/e2e/lab"
	"github.com/kubeveil/kubeveil/e2e/vm"
)

// runtimes checks which containerd runs where.
func runtimes(ctx context.Context, t *testing.T, c *vm.Cluster) {
	for i, want := range []string{"containerd://1.6.", "containerd://2."} {
		name := c.Machines[i].Name
		out, err := c.Kubectl(ctx, "get", "node", name, "-o", "jsonpath={.status.nodeInfo.containerRuntimeVersion}")
		if err != nil || !strings.HasPrefix(string(out), want) {
			t.Errorf("%s runs %s, %v; want %s", name, out, err, want)
		}
	}
}

// apiAway takes the API server away while pods talk, and gives it back.
func apiAway(ctx context.Context, t *testing.T, c *vm.Cluster, a, b *vm.Pod) {
	if err := c.StopAPI(ctx); err != nil {
		t.Fatal(err)
	}
	if out, err := c.Kubectl(ctx, "get", "nodes"); err == nil {
		t.Errorf("there is an API server: %s", out)
	}
	to := netip.AddrPortFrom(b.Addrs[0], lab.EchoPort)
	// From a pod of the node, whichever.
	line := fmt.Sprintf("nsenter --net=/run/netns/$(ls /run/netns | head -n 1) ping -c 3 -i 0.3 -W 5 %s", to.Addr())
	if out, err := c.Exec(ctx, a.Node.Name, line); err != nil {
		t.Errorf("without an API server: %v: %s", err, out)
	}
	if err := c.StartAPI(ctx); err != nil {
		t.Fatal(err)
	}
	send(ctx, t, a, "tcp", to, b.Name)
}

// reboots takes the power from the node of b; its pod comes back, with another address, and is reached.
func reboots(ctx context.Context, t *testing.T, c *vm.Cluster, a, b *vm.Pod) {
	before, err := c.Exec(ctx, b.Node.Name, "cat /proc/sys/kernel/random/boot_id")
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Reboot(ctx, b.Node.Name); err != nil {
		t.Fatal(err)
	}
	after, err := c.Exec(ctx, b.Node.Name, "cat /proc/sys/kernel/random/boot_id")
	if err != nil || string(after) == string(before) {
		t.Errorf("boot %s after boot %s: %v", after, before, err)
	}
	err = eventually(ctx, func() error {
		// Its status may be that of before: only an answer says that it is there.
		addrs, err := c.PodAddrs(ctx, b.Name)
		if err != nil {
			return err
		}
		_, err = a.Send(ctx, "tcp", netip.AddrPortFrom(addrs[0], lab.EchoPort), 1)
		return err
	})
	if err != nil {
		t.Errorf("%v\n%s", err, situation(ctx, c, b.Node))
	}
}

// situation is what a person would look at first when a node does not do what it should.
func situation(ctx context.Context, c *vm.Cluster, m *vm.Machine) string {
	objects, _ := c.Kubectl(ctx, "get", "nodes,pods", "--all-namespaces", "--output=wide")
	events, _ := c.Kubectl(ctx, "events", "--all-namespaces", "--types=Warning")
	journal, _ := m.Exec(ctx, "systemctl --failed --no-pager; journalctl --no-pager --output=cat --lines=80 --unit=kubelet --unit=containerd")
	return fmt.Sprintf("%s\n%s\n%s says %s", objects, events, m.Name, journal)
}

// joins lets a machine without the kernel's WireGuard join, talk and leave.
func joins(ctx context.Context, t *testing.T, c *vm.Cluster, a *vm.Pod) {
	name, err := c.Join(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Kubectl(ctx, "wait", "--for=condition=Ready", "node/"+name, "--timeout=600s"); err != nil {
		t.Fatal(err)
	}
	late := &vm.Pod{Name: "late", Node: c.Machines[len(c.Machines)-1]}
	if err := c.RunPod(ctx, late); err != nil {
		t.Fatal(err)
	}
	if out, err := late.Node.Exec(ctx, "ip -d link show dev veil0"); err != nil || !strings.Contains(string(out), "tun") {
		t.Errorf("%s: its tunnel is not that of veil-wg: %v: %s", name, err, out)
	}
	for _, addr := range late.Addrs {
		send(ctx, t, a, "udp", netip.AddrPortFrom(addr, lab.EchoPort), late.Name)
	}
	if err := c.Leave(ctx, name); err != nil {
		t.Fatal(err)
	}
	if out, err := c.Kubectl(ctx, "get", "node", name, "--ignore-not-found", "-o", "name"); err != nil || len(out) > 0 {
		t.Errorf("%s has not left: %s, %v", name, out, err)
	}
}
