package main

import (
	"os/exec"
	"strings"
	"testing"
)

// forbidden are packages that the plugin must not contain, by prefix, and why.
var forbidden = map[string]string{
	"k8s.io/":                                    "ADD, DEL and CHECK work with the API server away, and a client costs start-up time on each of them",
	"github.com/kubeveil/kubeveil/pkg/kube":      "only the daemon talks to the API server",
	"github.com/kubeveil/kubeveil/pkg/agent":     "only the daemon has a loop",
	"github.com/kubeveil/kubeveil/pkg/source":    "the plugin reads no table",
	"github.com/kubeveil/kubeveil/pkg/guard":     "the plugin checks that the guard is pinned, and could not load it without the daemon's settings",
	"github.com/kubeveil/kubeveil/pkg/tunnel":    "tunnels are the daemon's",
	"github.com/kubeveil/kubeveil/pkg/hostnet":   "the node's routes and rules are the daemon's",
	"github.com/kubeveil/kubeveil/pkg/telemetry": "a short-lived program serves no metrics",
	"github.com/kubeveil/kubeveil/bpf":           "only the guard loads programs; the plugin attaches what is pinned",
	"github.com/kubeveil/kubeveil/csi":           "storage and network share nothing",
	"golang.zx2c4.com/wireguard":                 "only pkg/tunnel and veil-wg know WireGuard",
	"github.com/prometheus/":                     "a short-lived program serves no metrics",
}

func TestDependencies(t *testing.T) {
	out, err := exec.Command("go", "list", "-deps", ".").Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	deps := strings.Fields(string(out))
	if len(deps) < 10 {
		t.Fatalf("go list gave only %q", deps)
	}
	for _, dep := range deps {
		for prefix, reason := range forbidden {
			if dep == prefix || strings.HasPrefix(dep, strings.TrimSuffix(prefix, "/")+"/") {
				t.Errorf("veil depends on %s: %s", dep, reason)
			}
		}
	}
}
