package vm_test

import (
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/kubeveil/kubeveil/e2e/lab/buildtree"
	"github.com/kubeveil/kubeveil/e2e/vm"
	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/pkg/guard/chains"
)

// Pods of containerd with addresses of IPv4 only are idle for ten minutes. Their kernels send
// router solicitations and reports of multicast groups all the same. No source counts as spoofed
// and no packet as blocked. The case idle-pods of `make e2e` has pods with both families.
func TestIdlePodsOfContainerdWithIPv4(t *testing.T) {
	const pods, idle = 20, 10 * time.Minute
	ctx, c := newCluster(t, vm.ClusterConfig{Bare: true, Nodes: 1})
	root, err := buildtree.Root()
	errtest.Must(t, err)
	m, self := c.Machines[0], tablesOf(t, c)[0]
	if p := self.table.Self.PodPrefixes; len(p) != 1 || !p[0].Addr().Is4() {
		t.Fatalf("pod prefixes %v, want one of IPv4", p)
	}
	for to, from := range map[string]string{
		"/opt/cni/bin/veil":       "bin/veil",
		"/opt/cni/bin/host-local": "bin/host-local",
		"/opt/cni/bin/loopback":   "bin/loopback",
		"/opt/cni/bin/portmap":    "bin/portmap",
		"/opt/cni/bin/bandwidth":  "bin/bandwidth",
		"/usr/local/bin/veilctl":  "bin/veilctl",
		"/root/tools.tar":         "images/kubeveil-tools.tar",
	} {
		errtest.Must(t, m.PutFile(ctx, to, filepath.Join(root, "out", from)))
	}
	startVeild(ctx, t, m, self, c.Lab.Family())
	until(ctx, t, time.Minute, "a node that is ready for pods", func() error {
		return errtest.Of(m.Exec(ctx, "veilctl status"))
	})
	shell(ctx, t, m, "systemctl start containerd && ctr images import /root/tools.tar")
	for i := range pods {
		shell(ctx, t, m, fmt.Sprintf("ctr run -d --cni localhost/kubeveil-tools:dev idle-%d "+
			"/usr/local/bin/veil-tools echo-serve", i))
	}

	select {
	case <-time.After(idle):
	case <-ctx.Done():
		t.Fatal(ctx.Err())
	}
	s := status(ctx, t, m)
	if s.Pods != pods || len(s.Problems) > 0 {
		t.Errorf("%d pods, problems %q, want %d and none", s.Pods, s.Problems, pods)
	}
	apart := false
	for _, d := range s.Guard.Drops {
		switch {
		case d.Packets == 0:
		case d.Harmless || d.Name == chains.TunnelUnknownSource:
			t.Logf("%s: %d packets", d.Name, d.Packets)
			apart = apart || d.Name == chains.PodLinkLocal
		default:
			t.Errorf("%s: %d packets of idle pods", d.Name, d.Packets)
		}
	}
	if !apart {
		t.Error("the pods' kernels sent nothing, so nothing is shown")
	}
	result, err := c.Close()
	errtest.Check(t, err)
	errtest.Check(t, result.Err())
}
