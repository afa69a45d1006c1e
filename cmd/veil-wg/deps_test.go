package main

import (
	"testing"

	"github.com/kubeveil/kubeveil/hack/deptest"
)

func TestDependencies(t *testing.T) {
	deptest.Forbid(t, map[string]string{
		"k8s.io": "the worker holds private keys and moves packets; what it " +
			"need not know it cannot be tricked with",
		"github.com/cilium/ebpf": "the worker loads no programs",
		deptest.Module + "/pkg/agent": "the worker is never a part of veild: restarting one does " +
			"not touch the other",
		deptest.Module + "/e2e": "test code is not shipped",
	})
}
