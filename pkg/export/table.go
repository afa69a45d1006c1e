package export

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/kubeveil/kubeveil/pkg/cluster"
)

// Bounds of openings, each an address, protocol and port for one site.
const (
	// MaxOpenings bounds the openings of a node.
	MaxOpenings = 1 << 16
	// MaxOfNamespace bounds the openings of the exports of one namespace.
	MaxOfNamespace = 1 << 13
	// maxShown bounds the sentences of a Decision.
	maxShown = 8
)

// Exports holds ServiceExports and EndpointSlices. The zero value is empty. It is not safe for
// concurrent use.
type Exports struct {
	exports map[Name]Export
	slices  map[Name]map[string]Slice
}

// PutExport adds or replaces an export.
func (t *Exports) PutExport(e Export) {
	if t.exports == nil {
		t.exports = map[Name]Export{}
	}
	t.exports[e.Name] = e
}

// DeleteExport removes an export.
func (t *Exports) DeleteExport(n Name) { delete(t.exports, n) }

// PutSlice adds or replaces a slice.
func (t *Exports) PutSlice(s Slice) {
	if t.slices == nil {
		t.slices = map[Name]map[string]Slice{}
	}
	if t.slices[s.Service] == nil {
		t.slices[s.Service] = map[string]Slice{}
	}
	t.slices[s.Service][s.Name] = s
}

// DeleteSlice removes a slice.
func (t *Exports) DeleteSlice(service Name, name string) {
	delete(t.slices[service], name)
	if len(t.slices[service]) == 0 {
		delete(t.slices, service)
	}
}

// Decision is which endpoints are open, and which exported ones are not.
type Decision struct {
	// Openings are sorted and distinct.
	Openings []cluster.Opening
	// NoPods counts exported endpoints without a pod of the export's namespace, and Excess the
	// openings beyond the bounds. All of them are closed.
	NoPods, Excess int
	// Problems are sentences about closed endpoints and unknown sites, at most maxShown.
	Problems []string
}

// Decide returns the openings for sites, the names of the sites that reach exports only. known are
// the names of all sites. pods are the pods of this node.
func (t *Exports) Decide(sites, known []string, pods []Pod) Decision {
	var d Decision
	owner := map[netip.Addr]string{}
	for _, p := range pods {
		for _, a := range p.Addrs {
			owner[a] = p.Namespace
		}
	}

	names := slices.SortedFunc(maps.Keys(t.exports), func(a, b Name) int {
		return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
	})
	seen := map[cluster.Opening]bool{}
	namespace, room := "", 0
	for _, name := range names {
		if name.Namespace != namespace {
			namespace, room = name.Namespace, MaxOfNamespace
		}
		e := t.exports[name]
		for _, s := range e.Sites {
			if !slices.Contains(known, s) {
				d.note("ServiceExport %s names site %.63q, which the configuration does not have", name,
					s)
			}
		}
		importers := slices.DeleteFunc(slices.Clone(sites), func(s string) bool {
			return e.Named && !slices.Contains(e.Sites, s)
		})

		for _, o := range t.endpoints(&d, name, owner, importers) {
			switch {
			case seen[o]:
			case room == 0 || len(d.Openings) == MaxOpenings:
				d.Excess++
			default:
				seen[o] = true
				d.Openings = append(d.Openings, o)
				room--
			}
		}
	}

	if d.Excess > 0 {
		d.note("%d exported endpoints stay closed to sites: a namespace may have %d and a node %d, "+
			"counted once for each port and site; export less", d.Excess, MaxOfNamespace, MaxOpenings)
	}
	slices.SortFunc(d.Openings, cluster.Opening.Compare)
	return d
}

// endpoints returns the openings of a service for sites, without bounds. It counts the endpoints
// without a pod of the service's namespace in d.
func (t *Exports) endpoints(d *Decision, service Name, owner map[netip.Addr]string,
	sites []string) (all []cluster.Opening) {
	of := t.slices[service]
	for _, name := range slices.Sorted(maps.Keys(of)) {
		for _, a := range of[name].Addrs {
			if owner[a] != service.Namespace {
				d.NoPods++
				d.note("endpoint %s of ServiceExport %s has no pod of its namespace on this "+
					"node, such as on the host's network, and stays closed to sites", a, service)
				continue
			}
			for _, p := range of[name].Ports {
				for _, s := range sites {
					all = append(all, cluster.Opening{Site: s, Protocol: p.Protocol,
						Endpoint: netip.AddrPortFrom(a, p.Port)})
				}
			}
		}
	}
	return all
}

// note adds a sentence, unless there are maxShown.
func (d *Decision) note(format string, args ...any) {
	if len(d.Problems) < maxShown {
		d.Problems = append(d.Problems, fmt.Sprintf(format, args...))
	}
}
