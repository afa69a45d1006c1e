package agent

import (
	"slices"
	"testing"
)

// A node's address may also be an address of a service, as an external IP or by a load balancer on
// the nodes. Pods must still reach the node's other ports.
func TestAddressesOfNodesStayOpen(t *testing.T) {
	in := two(t)
	in.vips = addrs("198.18.0.12", "198.18.64.1", "fd42::c", "fd42:64::1")
	if got, want := decide(in).guard.VIPs, addrs("198.18.64.1", "fd42:64::1"); !slices.Equal(got,
		want) {
		t.Errorf("closed are %v, want %v", got, want)
	}
}
