package main

import (
	"testing"

	"github.com/kubeveil/kubeveil/hack/deptest"
)

func TestDependencies(t *testing.T) {
	deptest.Forbid(t, map[string]string{
		"k8s.io": "ADD, DEL and CHECK work with the API server away, and " +
			"a client costs start-up time on each of them",
		deptest.Module + "/pkg/config": "the operator's file is the daemon's; numbers and " +
			"names are in pkg/abi",
		"sigs.k8s.io/yaml":             "the plugin reads JSON only",
		deptest.Module + "/pkg/kube":   "only the daemon talks to the API server",
		deptest.Module + "/pkg/agent":  "only the daemon has a loop",
		deptest.Module + "/pkg/source": "the plugin reads no table",
		deptest.Module + "/pkg/guard": "the plugin checks that the guard is pinned, and could " +
			"not load it without the daemon's settings",
		deptest.Module + "/pkg/tunnel":    "tunnels are the daemon's",
		deptest.Module + "/pkg/hostnet":   "the node's routes and rules are the daemon's",
		deptest.Module + "/pkg/telemetry": "a short-lived program serves no metrics",
		deptest.Module + "/bpf": "only the guard loads programs; the plugin attaches " +
			"what is pinned",
		deptest.Module + "/csi":      "storage and network share nothing",
		"golang.zx2c4.com/wireguard": "only pkg/tunnel and veil-wg know WireGuard",
		"github.com/prometheus":      "a short-lived program serves no metrics",
	})
}
