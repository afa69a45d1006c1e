package main

import (
	"testing"

	"github.com/kubeveil/kubeveil/hack/deptest"
)

func TestDependencies(t *testing.T) {
	deptest.Forbid(t, map[string]string{
		deptest.Module + "/e2e":              "test code is not shipped",
		deptest.Module + "/internal/nettest": "test code is not shipped",
		deptest.Module + "/pkg/worker":       "userspace WireGuard runs in a process of its own",
		"golang.zx2c4.com/wireguard/device":  "userspace WireGuard runs in a process of its own",
		"k8s.io/client-go/kubernetes": "the generated clients cost memory on every node " +
			"and are not needed",
	})
}

// The seams of docs/design/0001 and the architecture, for all of pkg/ and internal/.
func TestWhoImportsWhat(t *testing.T) {
	for _, r := range []struct {
		dep, reason string
		allowed     []string
	}{
		{deptest.Module + "/bpf", "the guard and the table of services alone know their programs",
			[]string{"pkg/guard", "pkg/service/table"}},
		{"golang.zx2c4.com/wireguard/wgctrl", "devices are configured in one place",
			[]string{"pkg/tunnel", "internal/enginetest"}},
		{"golang.zx2c4.com/wireguard/device", "userspace WireGuard runs in a process of its own",
			[]string{"pkg/worker", "internal/enginetest"}},
		{"k8s.io/client-go", "the API server is a transport behind pkg/source",
			[]string{"pkg/kube", "pkg/remote", "internal/reflector", "internal/tokenfile"}},
		{"github.com/vishvananda/netlink", "interrupted dumps are retried in one place",
			[]string{"internal/nl"}},
		{deptest.Module + "/pkg/agent", "the agent knows the others, none of them knows it", nil},
		{deptest.Module + "/csi", "storage and network share nothing", nil},
		{deptest.Module + "/internal/nettest", "test code is not shipped",
			[]string{"internal/nettest", "internal/podtest", "internal/servicetest",
				"internal/tunneltest", "internal/enginetest"}},
	} {
		for _, tree := range []string{"/pkg/...", "/internal/..."} {
			deptest.OnlyImporter(t, deptest.Module+tree, r.dep, r.reason, r.allowed...)
		}
	}

	deptest.OnlyImporter(t, deptest.Module+"/internal/...", deptest.Module+"/pkg",
		"internal/ is below pkg/ and csi/, which share nothing else", "internal/sysctl",
		"internal/nettest", "internal/podtest", "internal/policytest", "internal/servicetest",
		"internal/tunneltest", "internal/enginetest")

	for _, leaf := range []string{"pkg/abi", "pkg/wgkey", "pkg/cluster"} {
		for _, dep := range []string{"pkg/kube", "pkg/guard", "pkg/hostnet", "pkg/tunnel",
			"pkg/pod", "internal/nl", "pkg/netns"} {
			deptest.OnlyImporter(t, deptest.Module+"/"+leaf+"/...", deptest.Module+"/"+dep,
				leaf+" is a leaf: pure, no kernel, no Kubernetes")
		}
	}
}
