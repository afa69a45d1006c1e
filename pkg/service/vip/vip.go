package vip

import (
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/kubeveil/kubeveil/pkg/service"
)

// Linger is the time for which an address counts after its last service was deleted, and then the
// interval at which its use is checked. The address still counts because its flows go on, and
// programs still translate their packets.
const Linger = time.Hour

// formerKept bounds the addresses that Former returns.
const formerKept = 4096

// Addresses are the addresses of all known services outside the cluster's service ranges:
// LoadBalancer IPs and external IPs. An untranslated packet of a pod to one of them must not leave
// the node. The table of services cannot drop such a packet, because it passes packets to addresses
// that it does not have. Methods may be called concurrently. The zero value has no services.
type Addresses struct {
	mu        sync.Mutex
	byService map[service.Name][]netip.Addr
	gone      map[netip.Addr]time.Time // when its last service or its last use ended
	// former holds all addresses that lost a service, and balancers the BalancerIPs of services.
	former    map[netip.Addr]bool
	balancers map[service.Name][]netip.Addr
}

// Put adds or replaces a service and reports whether its addresses changed. An address that no
// frontend may have does not count, and neither does an address of a family that the service does
// not have.
func (v *Addresses) Put(s service.Service, now time.Time) bool {
	var addrs []netip.Addr
	for _, a := range slices.Concat(s.LoadBalancerIPs, s.ExternalIPs) {
		if a = a.Unmap(); service.Reachable(a) && s.HasFamily(a.Is6()) {
			addrs = append(addrs, a)
		}
	}
	return v.set(s.Name, sorted(addrs), s.BalancerIPs, now)
}

// Delete removes a service and reports whether it had addresses.
func (v *Addresses) Delete(n service.Name, now time.Time) bool { return v.set(n, nil, nil, now) }

// Former returns addresses that services had and none has now, at most 4,096.
func (v *Addresses) Former() (former []netip.Addr) {
	v.mu.Lock()
	defer v.mu.Unlock()
	has := map[netip.Addr]bool{}
	for _, addrs := range v.byService {
		for _, a := range addrs {
			has[a] = true
		}
	}
	for a := range v.former {
		if !has[a] {
			former = append(former, a)
		}
	}
	return sorted(former)
}

// Balancers returns the addresses of load balancers to which packets of pods leave the node
// untranslated (ipMode Proxy).
func (v *Addresses) Balancers() (all []netip.Addr) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, addrs := range v.balancers {
		for _, a := range addrs {
			all = append(all, a.Unmap())
		}
	}
	return sorted(all)
}

// Left adds addresses that services had before this process began. They count as if their services
// were deleted now.
func (v *Addresses) Left(addrs []netip.Addr, now time.Time) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.begin()
	for _, a := range addrs {
		v.goneLocked(a.Unmap(), now)
	}
}

// begin makes the zero value's maps.
func (v *Addresses) begin() {
	if v.byService == nil {
		v.byService, v.gone = make(map[service.Name][]netip.Addr), make(map[netip.Addr]time.Time)
		v.former, v.balancers = map[netip.Addr]bool{}, map[service.Name][]netip.Addr{}
	}
}

// goneLocked records that an address has lost a service.
func (v *Addresses) goneLocked(a netip.Addr, now time.Time) {
	v.gone[a] = now
	if len(v.former) < formerKept {
		v.former[a] = true
	}
}

func (v *Addresses) set(n service.Name, addrs, balancers []netip.Addr, now time.Time) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.begin()
	if v.balancers[n] = balancers; len(balancers) == 0 {
		delete(v.balancers, n)
	}

	had := v.byService[n]
	if slices.Equal(had, addrs) {
		return false
	}
	for _, a := range had {
		if !slices.Contains(addrs, a) {
			v.goneLocked(a, now)
		}
	}
	if v.byService[n] = addrs; len(addrs) == 0 {
		delete(v.byService, n)
	}
	return true
}

// Addrs returns addresses, each once and sorted. They are addresses that services have now or had
// within the last Linger, and addresses that are still in use. inUse returns the addresses among
// its argument that are in use. It is costly, so it is called once in Linger for each address.
func (v *Addresses) Addrs(now time.Time, inUse func([]netip.Addr) []netip.Addr) []netip.Addr {
	v.mu.Lock()
	defer v.mu.Unlock()
	var all, late []netip.Addr
	for _, addrs := range v.byService {
		all = append(all, addrs...)
	}
	for a, when := range v.gone {
		if now.Sub(when) > Linger {
			delete(v.gone, a)
			late = append(late, a)
		} else {
			all = append(all, a)
		}
	}
	if len(late) > 0 {
		for _, a := range inUse(sorted(late)) {
			v.gone[a] = now
			all = append(all, a)
		}
	}
	return sorted(all)
}

// sorted returns each address once.
func sorted(addrs []netip.Addr) []netip.Addr {
	slices.SortFunc(addrs, netip.Addr.Compare)
	return slices.Compact(addrs)
}
