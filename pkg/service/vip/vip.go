package vip

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/kubeveil/kubeveil/pkg/service"
)

// Linger is the time for which an address counts after its last service was deleted, and then the
// interval at which its use is checked. The address still counts because its flows go on, and
// programs still translate their packets.
const Linger = time.Hour

const (
	// formerKept bounds the addresses that Former returns.
	formerKept = 4096
	// NamespaceMax bounds the addresses of one namespace: those of its services, each service by
	// itself, and those that count although its services have them no longer.
	NamespaceMax = 16384
	// NormalMax bounds the addresses of all namespaces. Beyond it a namespace gets a new address
	// only if it has fewer than smallNamespace, and beyond servedMax no namespace gets any.
	// refusedMax bounds the refused addresses that count. The guard has a set of twice servedMax
	// and refusedMax, so that it has room for the former and the next addresses at once.
	NormalMax      = 65536
	smallNamespace = 1024
	servedMax      = 98304
	refusedMax     = 32768
	// retryAfter is the time between two attempts to give services the addresses that were refused.
	retryAfter = time.Minute
)

// Refused counts the addresses of a namespace's services that are refused for lack of room. Open is
// the number of them for which even Addrs has no room.
type Refused struct {
	Namespace       string
	Addresses, Open int
}

// Addresses are the addresses of all known services outside the cluster's service ranges:
// LoadBalancer IPs and external IPs. An untranslated packet of a pod to one of them must not leave
// the node. The table of services cannot drop such a packet, because it passes packets to addresses
// that it does not have. Methods may be called concurrently. The zero value has no services.
type Addresses struct {
	mu        sync.Mutex
	byService map[service.Name][]netip.Addr // sorted
	gone      map[netip.Addr]goneAddr
	// count is the number of addresses by namespace, as NamespaceMax counts them; total is their
	// sum.
	count map[string]int
	total int
	// refused holds services with refused addresses. Retry last returned them at retried.
	refused map[service.Name]refusal
	retried time.Time
	// former holds all addresses that lost a service, and balancers the BalancerIPs of services.
	former    map[netip.Addr]bool
	balancers map[service.Name][]netip.Addr
}

// refusal is a service as it was put, and its refused addresses.
type refusal struct {
	service service.Service
	addrs   []netip.Addr // sorted
}

// goneAddr is an address that lost a service.
type goneAddr struct {
	when      time.Time // its last service or its last use ended
	namespace string    // of that service; empty if it is not known
}

// Put adds or replaces a service. It returns the service without the addresses that are refused
// because its namespace has too many, and whether the addresses changed. A refused address must not
// be translated, because it would not stay closed after its service lost it. An address that no
// frontend may have does not count, and neither does an address of a family that the service does
// not have.
func (v *Addresses) Put(s service.Service, now time.Time) (kept service.Service, changed bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.begin()
	var addrs []netip.Addr
	for _, a := range slices.Concat(s.LoadBalancerIPs, s.ExternalIPs) {
		if a = a.Unmap(); service.Reachable(a) && s.HasFamily(a.Is6()) {
			addrs = append(addrs, a)
		}
	}
	refused, changed := v.set(s.Name, sorted(addrs), s.BalancerIPs, now)
	changed = changed || !slices.Equal(refused, v.refused[s.Name].addrs)
	delete(v.refused, s.Name)
	if len(refused) == 0 {
		return s, changed
	}

	v.refused[s.Name] = refusal{s, refused}
	without := func(addrs []netip.Addr) []netip.Addr {
		return slices.DeleteFunc(slices.Clone(addrs), func(a netip.Addr) bool {
			return has(refused, a.Unmap())
		})
	}
	s.LoadBalancerIPs, s.ExternalIPs = without(s.LoadBalancerIPs), without(s.ExternalIPs)
	return s, changed
}

// Delete removes a service and reports whether it had addresses.
func (v *Addresses) Delete(n service.Name, now time.Time) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.begin()
	_, had := v.refused[n]
	delete(v.refused, n)
	_, changed := v.set(n, nil, nil, now)
	return changed || had
}

// Retry returns the services with refused addresses, at most once a minute. The caller puts them
// again, because there may be room now.
func (v *Addresses) Retry(now time.Time) []service.Service {
	v.mu.Lock()
	defer v.mu.Unlock()
	if len(v.refused) == 0 || now.Sub(v.retried) < retryAfter {
		return nil
	}
	v.retried = now
	all := make([]service.Service, 0, len(v.refused))
	for _, r := range v.refused {
		all = append(all, r.service)
	}
	slices.SortFunc(all, func(a, b service.Service) int {
		return strings.Compare(a.Name.String(), b.Name.String())
	})
	return all
}

// Refused returns how many addresses are refused, by namespace.
func (v *Addresses) Refused() (all []Refused) {
	v.mu.Lock()
	defer v.mu.Unlock()
	_, all = v.closedRefused()
	slices.SortFunc(all, func(a, b Refused) int {
		return strings.Compare(a.Namespace, b.Namespace)
	})
	return all
}

// closedRefused returns at most refusedMax refused addresses, those of namespaces with few first,
// and the numbers of all namespaces.
func (v *Addresses) closedRefused() (addrs []netip.Addr, all []Refused) {
	byNamespace := make(map[string][]netip.Addr)
	for n, r := range v.refused {
		byNamespace[n.Namespace] = append(byNamespace[n.Namespace], r.addrs...)
	}
	for ns, refused := range byNamespace {
		all = append(all, Refused{Namespace: ns, Addresses: len(refused)})
	}
	slices.SortFunc(all, func(a, b Refused) int {
		return cmp.Or(cmp.Compare(a.Addresses, b.Addresses),
			strings.Compare(a.Namespace, b.Namespace))
	})
	for i, r := range all {
		n := min(r.Addresses, refusedMax-len(addrs))
		addrs = append(addrs, sorted(byNamespace[r.Namespace])[:n]...)
		all[i].Open = r.Addresses - n
	}
	return addrs, all
}

// Former returns addresses that services had and none has now, at most 4,096.
func (v *Addresses) Former() (former []netip.Addr) {
	v.mu.Lock()
	defer v.mu.Unlock()
	present := map[netip.Addr]bool{}
	for _, addrs := range v.byService {
		for _, a := range addrs {
			present[a] = true
		}
	}
	for a := range v.former {
		if !present[a] {
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
		v.lose(a.Unmap(), "", now)
	}
}

// begin makes the zero value's maps.
func (v *Addresses) begin() {
	if v.byService == nil {
		v.byService, v.gone = make(map[service.Name][]netip.Addr), make(map[netip.Addr]goneAddr)
		v.count, v.refused = make(map[string]int), make(map[service.Name]refusal)
		v.former, v.balancers = map[netip.Addr]bool{}, map[service.Name][]netip.Addr{}
	}
}

// add adds n to the number of addresses of a namespace.
func (v *Addresses) add(namespace string, n int) {
	v.total += n
	if v.count[namespace] += n; v.count[namespace] == 0 {
		delete(v.count, namespace)
	}
}

// lose records that an address has lost a service of a namespace.
func (v *Addresses) lose(a netip.Addr, namespace string, now time.Time) {
	v.open(a)
	v.gone[a] = goneAddr{now, namespace}
	v.add(namespace, 1)
	if len(v.former) < formerKept {
		v.former[a] = true
	}
}

// open removes an address from those that lost a service.
func (v *Addresses) open(a netip.Addr) {
	if g, ok := v.gone[a]; ok {
		delete(v.gone, a)
		v.add(g.namespace, -1)
	}
}

// room reports whether a namespace may have the address. One that it had until lately counts
// already. So does one whose namespace is not known, as after a restart of veild.
func (v *Addresses) room(namespace string, a netip.Addr) bool {
	n := v.count[namespace]
	g, ok := v.gone[a]
	switch {
	case ok && g.namespace == namespace:
		return true
	case n >= NamespaceMax:
		return false
	case ok && g.namespace == "":
		return true
	}
	return v.total < servedMax && (v.total < NormalMax || n < smallNamespace)
}

// set replaces the addresses of a service. It returns those for which there is no room, sorted.
func (v *Addresses) set(n service.Name, addrs, balancers []netip.Addr,
	now time.Time) (refused []netip.Addr, changed bool) {
	if v.balancers[n] = balancers; len(balancers) == 0 {
		delete(v.balancers, n)
	}

	had := v.byService[n]
	for _, a := range had {
		if !has(addrs, a) {
			v.add(n.Namespace, -1)
			v.lose(a, n.Namespace, now)
		}
	}

	var kept []netip.Addr
	for _, a := range addrs {
		if !has(had, a) {
			if !v.room(n.Namespace, a) {
				refused = append(refused, a)
				continue
			}
			v.open(a)
			v.add(n.Namespace, 1)
		}
		kept = append(kept, a)
	}
	if v.byService[n] = kept; len(kept) == 0 {
		delete(v.byService, n)
	}
	return refused, !slices.Equal(had, kept)
}

func has(list []netip.Addr, a netip.Addr) bool {
	_, ok := slices.BinarySearchFunc(list, a, netip.Addr.Compare)
	return ok
}

// Addrs returns addresses, each once and sorted. They are addresses that services have now, refused
// ones included, or had within the last Linger, and addresses that are still in use. inUse returns
// the addresses among its argument that are in use. It is costly, so it is called once in Linger
// for each address.
func (v *Addresses) Addrs(now time.Time, inUse func([]netip.Addr) []netip.Addr) []netip.Addr {
	v.mu.Lock()
	defer v.mu.Unlock()
	all, _ := v.closedRefused()
	var late []netip.Addr
	for _, addrs := range v.byService {
		all = append(all, addrs...)
	}
	for a, g := range v.gone {
		if now.Sub(g.when) > Linger {
			late = append(late, a)
		} else {
			all = append(all, a)
		}
	}

	if len(late) > 0 {
		used := sorted(slices.Clone(inUse(sorted(late))))
		for _, a := range late {
			if !has(used, a) {
				v.open(a)
				continue
			}
			v.gone[a] = goneAddr{now, v.gone[a].namespace}
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
