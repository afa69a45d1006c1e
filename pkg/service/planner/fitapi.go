package planner

import (
	"fmt"
	"strings"

	"github.com/kubeveil/kubeveil/pkg/service"
	"github.com/kubeveil/kubeveil/pkg/service/buddy"
)

// fitAPI allocates a block of entry 0 that no program reads. Frontends for Host have no such block
// and use other slots. A frontend without room has no backends, so it is not translated. The next
// round tries again.
func (r *round) fitAPI(e *entry, want *decision) {
	for key, g := range want.groups {
		if r.keep(e, key, g) {
			continue
		}
		if key.isHost() {
			if !r.fitHost(g) {
				want.refused = append(want.refused, fmt.Errorf("services.apiFrontends: %s is not "+
					"translated: %w; raise services.limits.%s",
					strings.TrimPrefix(key.port, hostPrefix), service.ErrFull,
					service.LimitBackendSlots))
				r.dirty.note(e.name)
			}
			continue
		}

		first := uint32(0)
		if key.v6 {
			first = service.APISlots / 2
		}
		// All blocks are held only after Apply failed in part three times in a row. Then the last
		// block is used, because a moment of mixed versions is better than no API server.
		for last := first + (service.APIBlocks-1)<<service.APIOrder; first < last &&
			r.apiHeld[first]; {
			first += 1 << service.APIOrder
		}
		g.at = buddy.Extent{First: first, Count: uint32(g.backends.Len())}
		r.writeBackends(g)
	}
}

// fitHost allocates slots for the backends of a group, or removes them.
func (r *round) fitHost(g *group) (fits bool) {
	g.at, fits = r.take(g.backends.Len())
	if !fits {
		g.backends = service.Backends{}
	}
	r.writeBackends(g)
	return fits
}
