package main

import (
	"testing"

	"github.com/kubeveil/kubeveil/hack/deptest"
)

func TestDependencies(t *testing.T) {
	deptest.Forbid(t, map[string]string{
		deptest.Module + "/e2e":              "test code is not shipped",
		deptest.Module + "/internal/nettest": "test code is not shipped",
		"github.com/cilium/ebpf":             "it has no rights on the node",
		"github.com/vishvananda/netlink":     "it has no rights on the node",
	})
}
