package keeper

import (
	"net/netip"
	"slices"
	"sync"

	"github.com/kubeveil/kubeveil/pkg/cluster"
	"github.com/kubeveil/kubeveil/pkg/service"
)

// remote keeps the slices with endpoints of other clusters. Endpoints on a node that does not
// answer count as endpoints that terminate and serve. So they get new connections only if no other
// endpoint is ready: a partition does not empty a service.
type remote struct {
	ranges prefixes // of pods of all sites

	mu     sync.Mutex // held while slices are passed on
	slices map[object]service.Slice
	addrs  []netip.Addr // of the endpoints in ranges, sorted; nil if they must be collected again
	dead   []netip.Prefix
	isDead prefixes // the same
}

// prefixes finds the prefix that contains an address by one look-up per length: a site has
// thousands of prefixes, and each is compared with thousands of addresses.
type prefixes struct {
	all     map[netip.Prefix]bool
	lengths []int // the lengths of prefixes in all
}

func newPrefixes(list ...netip.Prefix) prefixes {
	out := prefixes{all: make(map[netip.Prefix]bool, len(list))}
	for _, p := range list {
		out.all[p.Masked()] = true
		if !slices.Contains(out.lengths, p.Bits()) {
			out.lengths = append(out.lengths, p.Bits())
		}
	}
	return out
}

// find returns a prefix that contains an address.
func (x prefixes) find(a netip.Addr) (netip.Prefix, bool) {
	for _, n := range x.lengths {
		if p, err := a.Prefix(n); err == nil && x.all[p] {
			return p, true
		}
	}
	return netip.Prefix{}, false
}

func (x prefixes) contain(a netip.Addr) bool {
	_, is := x.find(a)
	return is
}

// remoteRanges returns the ranges of the pods of open sites.
func remoteRanges(sites []cluster.Site) prefixes {
	var ranges []netip.Prefix
	for _, s := range sites {
		if s.Open() {
			ranges = append(ranges, s.PodRanges...)
		}
	}
	return newPrefixes(ranges...)
}

// put passes a slice on, with its endpoints judged. It reports whether addresses of Remote may have
// changed.
func (r *remote) put(s service.Slice, pass func(service.Slice)) (changed bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	key := object{s.Service, s.Name}
	_, had := r.slices[key]
	is := len(r.ranges.all) > 0 && s.Endpoints.Any(r.ranges.contain)
	if is && r.slices == nil {
		r.slices = map[object]service.Slice{}
	}
	if is {
		r.slices[key] = s
	} else {
		delete(r.slices, key)
	}
	pass(r.judgedLocked(s))
	if is || had {
		r.addrs = nil
	}
	return is || had
}

// delete passes the deletion of a slice on. It is like put.
func (r *remote) delete(owner service.Name, slice string,
	pass func(service.Name, string)) (changed bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	key := object{owner, slice}
	if _, had := r.slices[key]; had {
		delete(r.slices, key)
		r.addrs, changed = nil, true
	}
	pass(owner, slice)
	return changed
}

// judgedLocked returns s with endpoints on dead nodes as not ready. It does not change s.
func (r *remote) judgedLocked(s service.Slice) service.Slice {
	isDead := r.isDead.contain
	if len(r.dead) == 0 || !s.Endpoints.Any(isDead) {
		return s
	}
	s.Endpoints = s.Endpoints.Map(func(e service.Endpoint) service.Endpoint {
		if isDead(e.Addr) && e.Ready {
			e.Ready, e.Serving, e.Terminating = false, true, true
		}
		return e
	})
	return s
}

// setDead sets the pod prefixes of nodes that do not answer, and passes on again the slices with
// endpoints on nodes that died or answer again. dead is sorted.
func (r *remote) setDead(dead []netip.Prefix, pass func(service.Slice)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if slices.Equal(dead, r.dead) {
		return
	}
	changed := newPrefixes(slices.Concat(without(dead, r.dead, netip.Prefix.Compare),
		without(r.dead, dead, netip.Prefix.Compare))...)
	r.dead, r.isDead = slices.Clone(dead), newPrefixes(dead...)
	for _, s := range r.slices {
		if s.Endpoints.Any(changed.contain) {
			pass(r.judgedLocked(s))
		}
	}
}

// without returns the elements of a that are not in b. Both are sorted.
func without[T any](a, b []T, compare func(T, T) int) []T {
	return slices.DeleteFunc(slices.Clone(a), func(x T) bool {
		_, is := slices.BinarySearchFunc(b, x, compare)
		return is
	})
}

// Remote returns the addresses of endpoints of other clusters, sorted.
func (f *Feature) Remote() []netip.Addr {
	r := &f.remote
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.addrs != nil || len(r.slices) == 0 {
		return r.addrs
	}
	r.addrs = []netip.Addr{}
	for _, s := range r.slices {
		for a := range s.Endpoints.Addrs() {
			if r.ranges.contain(a) {
				r.addrs = append(r.addrs, a)
			}
		}
	}
	slices.SortFunc(r.addrs, netip.Addr.Compare)
	r.addrs = slices.Compact(r.addrs)
	return r.addrs
}
