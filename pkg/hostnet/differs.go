package hostnet

import (
	"slices"

	"github.com/kubeveil/kubeveil/pkg/hostnet/rtnetlink"
	"github.com/kubeveil/kubeveil/pkg/hostnet/watch"
)

// Differs reports whether the routes and tunnel devices of c differ from what the last Sync left.
// It does not query the kernel: the notifications of own writes match what Sync remembers.
func (h *Host) Differs(c watch.Change) bool {
	if len(c.Routes) == 0 && len(c.Devices) == 0 {
		return false
	}
	if h.have == nil {
		return true
	}

	for name, d := range c.Devices {
		i := slices.IndexFunc(h.have.Devices, func(have Device) bool { return have.Name == name })
		if i < 0 {
			return true
		}
		if have := h.have.Devices[i]; have.MTU != d.MTU || have.Group != d.Group ||
			have.QueueLen != d.QueueLen || have.Up != d.Up {
			return true
		}
	}

	there := map[rtnetlink.Route]bool{}
	for _, e := range c.Routes {
		if e.Ours {
			there[e.Route] = !e.Gone
			continue
		}
		// The kernel announces a replaced route only by its replacement.
		if _, taken := slices.BinarySearchFunc(h.have.Routes, e.Route,
			rtnetlink.CompareKeys); taken {
			return true
		}
	}

	for r, is := range there {
		if _, was := slices.BinarySearchFunc(h.have.Routes, r, rtnetlink.CompareRoutes); was != is {
			return true
		}
	}

	return false
}
