package keeper

import (
	"errors"
	"net/netip"
	"slices"
	"time"

	"github.com/kubeveil/kubeveil/internal/netns"
	"github.com/kubeveil/kubeveil/pkg/service"
	"github.com/kubeveil/kubeveil/pkg/service/bpfmaps"
	"github.com/kubeveil/kubeveil/pkg/service/link"
)

// tableOf adapts a bpfmaps.Table to the interface ServiceMaps of the Keeper.
type tableOf struct {
	*bpfmaps.Table
	links  *link.Links
	cgroup string
	// pods returns the paths of the network namespaces of pods.
	pods func() ([]string, error)
}

// Given returns the backends that sockets of this node and its pods got for these frontends.
func (t tableOf) Given(frontends []netip.AddrPort) ([]netip.AddrPort, error) {
	paths, err := t.pods()
	given, givenErr := t.Table.Given(frontends, append([]string{netns.Own}, paths...)...)
	return given, errors.Join(err, givenErr)
}

// Attach attaches the programs to the node's links and then to its sockets. Sockets come last,
// because with them most backends are chosen before there is a packet.
func (t tableOf) Attach() error {
	if t.links != nil {
		if _, err := t.links.AttachLinks(); err != nil {
			return err
		}
	}
	_, err := t.AttachSockets(t.cgroup)
	return err
}

// feed passes a feed to the Keeper. It also collects for the guard the addresses that pods may
// reach only by translation.
type feed struct {
	*Keeper
	feature *Feature
}

// PutService adds or replaces a service. Addresses that would not stay closed to pods are left out.
func (f feed) PutService(s service.Service) {
	f.feature.feeding.Lock()
	defer f.feature.feeding.Unlock()
	kept, changed := f.feature.vips.Put(s, time.Now())
	f.Keeper.PutService(kept)
	if changed {
		f.feature.o.Changed()
	}
}

// DeleteService removes a service.
func (f feed) DeleteService(n service.Name) {
	f.feature.feeding.Lock()
	defer f.feature.feeding.Unlock()
	f.Keeper.DeleteService(n)
	if f.feature.vips.Delete(n, time.Now()) {
		f.feature.o.Changed()
	}
}

// PutSlice adds or replaces a slice of endpoints. Endpoints on dead nodes of other clusters are not
// ready.
func (f feed) PutSlice(s service.Slice) {
	if f.feature.remote.put(s, f.Keeper.PutSlice) {
		f.feature.o.Changed()
	}
}

// DeleteSlice removes a slice of endpoints.
func (f feed) DeleteSlice(owner service.Name, slice string) {
	if f.feature.remote.delete(owner, slice, f.Keeper.DeleteSlice) {
		f.feature.o.Changed()
	}
}

// Listed records that every existing service has been put.
func (f feed) Listed() {
	f.Keeper.Listed()
	f.feature.listed.Store(true)
	f.feature.o.Changed()
}

// Closed returns the addresses of services that the guard blocks for pods. Addresses that it
// blocked before count as recently deleted, and stay blocked at least until services are listed. If
// another program now translates services, they stay blocked as long as flows of the old table may
// remain, which is until the machine reboots.
func (f *Feature) Closed() []netip.Addr {
	if f.links == nil {
		return f.o.Closed
	}
	f.retryRefused()
	known := f.vips.Addrs(time.Now(), f.inUse)
	if f.listed.Load() {
		return known
	}
	all := slices.Concat(known, f.o.Closed)
	slices.SortFunc(all, netip.Addr.Compare)
	return slices.Compact(all)
}

// retryRefused puts services again whose addresses had no room.
func (f *Feature) retryRefused() {
	f.feeding.Lock()
	defer f.feeding.Unlock()
	for _, s := range f.vips.Retry(time.Now()) {
		if kept, changed := f.vips.Put(s, time.Now()); changed {
			f.keeper.PutService(kept)
		}
	}
}

// Outside returns addresses at which pods may leave the cluster by mistake: addresses that services
// had and none has now, and addresses of load balancers that no program on a node translates.
// Without the table at links, veild does not know services, and Outside returns nothing.
func (f *Feature) Outside() (former, balancers []netip.Addr) {
	return f.vips.Former(), f.vips.Balancers()
}

// inUse returns the addresses among addrs that have flows. It returns all if that is unknown.
func (f *Feature) inUse(addrs []netip.Addr) []netip.Addr {
	used, err := f.links.InUse(addrs)
	if err != nil {
		f.o.Log.Warn("addresses of deleted services stay closed to pods, because veild cannot "+
			"read whether they have flows", "addresses", len(addrs), "first", addrs[0],
			"error", err)
		return addrs
	}
	return used
}
