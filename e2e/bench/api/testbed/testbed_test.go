package testbed

import (
	"net/netip"
	"testing"
)

func TestAddressesAreOfTheLab(t *testing.T) {
	lab, lab6 := netip.MustParsePrefix("198.18.0.0/15"), netip.MustParsePrefix("fd42::/16")
	seen := map[netip.Addr]bool{}
	note := func(addrs ...netip.Addr) {
		for _, a := range addrs {
			if !lab.Contains(a) || !lab6.Contains(six(a)) || seen[a] || seen[six(a)] {
				t.Errorf("%s is outside of the lab's range, or used twice", a)
			}
			seen[a], seen[six(a)] = true, true
		}
	}

	note(Frontend.Addr())
	for k := range serverCount {
		note(serverAddr(k))
	}
	for i := range nodeCount {
		note(podAddr(i), gateway(i))
		for k := range serverCount {
			note(wire(i, k))
		}
	}
	if !services.Contains(Frontend.Addr()) {
		t.Errorf("%s is not in %s", Frontend, services)
	}
}
