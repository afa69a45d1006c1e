package service

import (
	"maps"
	"net/netip"
	"slices"
	"sync"
)

// VIPs are the addresses of all known services that are not of the cluster's service ranges: of balancers, and external ones. A pod's packet
// to one of them that was not translated must not leave the node; the table cannot see to that, since what it does not know it leaves alone. Its
// methods may be called concurrently; the zero value has no services.
type VIPs struct {
	mu        sync.Mutex
	byService map[Name][]netip.Addr
}

// Put adds or replaces a service and says whether its addresses are others than before. An address that cannot be a frontend's does not count.
func (v *VIPs) Put(s Service) bool {
	var addrs []netip.Addr
	for _, a := range slices.Concat(s.LoadBalancerIPs, s.ExternalIPs) {
		if reachable(a) {
			addrs = append(addrs, a.Unmap())
		}
	}
	return v.set(s.Name, addrs)
}

// Delete takes a service away and says whether it had addresses.
func (v *VIPs) Delete(n Name) bool { return v.set(n, nil) }

func (v *VIPs) set(n Name, addrs []netip.Addr) bool {
	slices.SortFunc(addrs, netip.Addr.Compare)
	addrs = slices.Compact(addrs)
	v.mu.Lock()
	defer v.mu.Unlock()
	if slices.Equal(v.byService[n], addrs) {
		return false
	}
	if v.byService == nil {
		v.byService = make(map[Name][]netip.Addr)
	}
	if v.byService[n] = addrs; len(addrs) == 0 {
		delete(v.byService, n)
	}
	return true
}

// Addrs gives each address once, sorted.
func (v *VIPs) Addrs() []netip.Addr {
	v.mu.Lock()
	defer v.mu.Unlock()
	all := slices.Concat(slices.Collect(maps.Values(v.byService))...)
	slices.SortFunc(all, netip.Addr.Compare)
	return slices.Compact(all)
}
