package plan_test

import (
	"slices"
	"testing"

	"github.com/kubeveil/kubeveil/pkg/agent/plan"
	"github.com/kubeveil/kubeveil/pkg/agent/plan/plantest"
)

// A node's address may also be an address of a service, as an external IP or by a load balancer on
// the nodes. Pods must still reach the node's other ports.
func TestAddressesOfNodesStayOpen(t *testing.T) {
	in := plantest.Two(t)
	in.VIPs = addrs("198.18.0.12", "198.18.64.1", "fd42::c", "fd42:64::1")
	got, want := plan.Decide(in).Guard.VIPs, addrs("198.18.64.1", "fd42:64::1")
	if !slices.Equal(got, want) {
		t.Errorf("closed are %v, want %v", got, want)
	}
}
