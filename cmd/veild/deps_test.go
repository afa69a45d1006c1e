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
