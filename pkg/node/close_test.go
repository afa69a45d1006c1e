package node

import (
	"slices"
	"testing"

	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/config"
	"github.com/kubeveil/kubeveil/pkg/guard"
)

// Close on a node where veild has run since boot keeps the addresses and ranges that veild has
// closed.
func TestClosingKeepsWhatVeildLearned(t *testing.T) {
	have := &guard.Kernel{Nodes: nettest.Addrs("198.18.0.11", "fd42::b"),
		VIPs: nettest.Addrs("198.18.64.1", "fd42:64::1")}
	got, _ := closing(config.Config{}, have)
	if !slices.Equal(got.NodeAddrs, have.Nodes) || !slices.Equal(got.VIPs, have.VIPs) {
		t.Errorf("nodes %v and addresses of services %v stay closed, want %v and %v", got.NodeAddrs,
			got.VIPs, have.Nodes, have.VIPs)
	}
}
