package mirror

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/kubeveil/kubeveil/pkg/cluster"
	"github.com/kubeveil/kubeveil/pkg/kube/sitenode"
	"github.com/kubeveil/kubeveil/pkg/site/record"
	"github.com/kubeveil/kubeveil/pkg/wgkey"
)

// Input is what is known when a plan is made.
type Input struct {
	// Cluster is the name of this cluster, as a source of its own exports.
	Cluster string
	// PodRanges, NodeRanges and Keys are the ranges of this cluster and the keys of its nodes.
	PodRanges, NodeRanges []netip.Prefix
	Keys                  map[wgkey.Public]bool
	// Namespaces are the namespaces of this cluster.
	Namespaces map[string]bool
	// Sites are the sites of the configuration.
	Sites []Site
	// Own are the valid exports of this cluster.
	Own map[record.Key]Own
	// Existing are the imports that exist already.
	Existing map[record.Key]Existing
	// Dead are pod prefixes of nodes of sites that do not answer. DeadBefore reports that they are
	// not known yet: endpoints of sites that come last in what is written stay last.
	Dead       []netip.Prefix
	DeadBefore bool
	Now        time.Time
}

// Site is a site of the configuration and what it states.
type Site struct {
	cluster.Site
	// Head is nil if the site is not read yet, or if it states nothing.
	Head     *record.Head
	Nodes    map[string]record.Record // by name of the node
	Services map[record.Key]*record.Service
}

// Own is an export of this cluster.
type Own struct {
	Created time.Time
	Service *record.Service
}

// Existing is an import as the API server has it.
type Existing struct {
	// First holds, for each source, when its export was first seen.
	First map[string]time.Time
	// Service is the present service, without endpoints, and Slices holds those of each source.
	Service *record.Service
	Slices  map[string][]record.Slice
	// PreferLocal reports whether endpoints of this cluster come first (PreferAnnotation).
	PreferLocal bool
}

// Output is the result of Plan.
type Output struct {
	// Nodes holds the specs of SiteNodes by name.
	Nodes map[string][]byte
	// Imports are the imports that must exist.
	Imports map[record.Key]*Import
	// Kept are the names of sites that are not read yet. Their SiteNodes stay as they are.
	Kept map[string]bool
	// Reports holds what became of each site's statements.
	Reports map[string]*Report
}

// Report is what became of a site's statements.
type Report struct {
	Nodes, Imports, Endpoints int
	// Refused counts nodes, services and endpoints that are refused.
	Refused int
	// Overlap is a sentence about two ranges that overlap, or "".
	Overlap string
	// Problems are sentences about what is refused, at most maxProblems.
	Problems []string
}

// maxProblems bounds Report.Problems. A site can make any number of problems.
const maxProblems = 24

// refuse counts something that is refused, and adds a sentence about it.
func (r *Report) refuse(format string, args ...any) {
	r.Refused++
	r.note(format, args...)
}

// note adds a sentence.
func (r *Report) note(format string, args ...any) {
	if len(r.Problems) < maxProblems {
		r.Problems = append(r.Problems, fmt.Sprintf(format, args...))
	}
}

// Plan returns the objects that must exist.
func Plan(in Input) Output {
	out := Output{Nodes: map[string][]byte{}, Imports: map[record.Key]*Import{},
		Kept: map[string]bool{}, Reports: map[string]*Report{}}
	sources := map[record.Key][]*Source{}
	for _, s := range in.Sites {
		r := &Report{}
		out.Reports[s.Name] = r
		if !s.Open() {
			continue
		}
		if s.Head == nil {
			out.Kept[s.Name] = true
			in.keep(s, sources)
			continue
		}
		if r.Overlap = in.overlap(s); r.Overlap != "" {
			continue
		}
		in.planNodes(s, r, out.Nodes)
		in.planServices(s, r, sources)
		if n := len(within(s.PodRanges, in.Dead...)); n > 0 {
			r.note("the nodes of %d pod prefixes do not answer: their endpoints get new "+
				"connections only where no other is ready", n)
		}
	}

	dead := newPrefixes(slices.Concat(in.Dead, in.lowered()))
	for k, own := range in.Own {
		sources[k] = append(sources[k], &Source{Cluster: in.Cluster, Own: true,
			First: own.Created, Service: own.Service})
	}
	for k, all := range sources {
		out.Imports[k] = merge(all)
		if len(dead.all) > 0 {
			out.Imports[k].lower(func(s *Source, e record.Endpoint) bool {
				return !s.Own && dead.contains(e.Address)
			})
		}
		if in.Existing[k].PreferLocal {
			out.Imports[k].preferLocal()
		}
	}
	return out
}

// lowered returns the addresses of endpoints of sites that come last in what is written, if the nodes
// that do not answer are not known yet.
func (in Input) lowered() (addrs []netip.Prefix) {
	if !in.DeadBefore {
		return nil
	}
	for _, existing := range in.Existing {
		for from, slices := range existing.Slices {
			for _, slice := range slices {
				for _, e := range slice.Endpoints {
					if from != in.Cluster && !e.Ready && e.Serving && e.Terminating {
						addrs = append(addrs, netip.PrefixFrom(e.Address, e.Address.BitLen()))
					}
				}
			}
		}
	}
	return addrs
}

// keep adds the site as a source of the imports that it is a source of already, in the namespaces
// that still accept them. It has the present endpoints inside the ranges of the site.
func (in Input) keep(s Site, sources map[record.Key][]*Source) {
	for k, e := range in.Existing {
		if first, is := e.First[s.Name]; is && e.Service != nil && s.ImportsInto(k.Namespace) {
			service := *e.Service
			service.Slices, _ = acceptable(s, e.Slices[s.Name])
			sources[k] = append(sources[k], &Source{Cluster: s.Name, First: first,
				Service: &service})
		}
	}
}

// overlap returns a sentence about a range that the site states and that overlaps one of this
// cluster or of another site, or "".
func (in Input) overlap(s Site) string {
	theirs := slices.Concat(s.Head.PodRanges, s.Head.NodeRanges)
	const text = "%s of %s overlaps %s of %s: renumber one of the clusters, or link them by proxies"
	ours := slices.Concat(in.PodRanges, in.NodeRanges)
	if a, b, found := record.Overlapping(theirs, ours); found {
		return fmt.Sprintf(text, a, s.Name, b, "this cluster")
	}
	for _, other := range in.Sites {
		if other.Name == s.Name {
			continue
		}
		ranges := slices.Concat(other.PodRanges, other.NodeRanges)
		if a, b, found := record.Overlapping(theirs, ranges); found {
			return fmt.Sprintf(text, a, s.Name, b, "site "+other.Name)
		}
	}
	return ""
}

func (in Input) planNodes(s Site, r *Report, nodes map[string][]byte) {
	for _, name := range slices.Sorted(maps.Keys(s.Nodes)) {
		n := s.Nodes[name]
		problem := in.judgeNode(s, n)
		raw, err := sitenode.Encode(*n.Claim, n.Addrs)
		if err != nil && problem == "" {
			problem = err.Error()
		}
		if problem != "" {
			r.refuse("node %s is refused: %s", name, problem)
			continue
		}
		nodes[s.Name+"."+name] = raw
		r.Nodes++
	}
}

// judgeNode returns a sentence about why the node is refused, or "".
func (in Input) judgeNode(s Site, n record.Record) string {
	const remedy = "; correct sites[].%s in the configuration of this cluster, or the node"
	for _, a := range n.Addrs {
		if !inAny(s.NodeRanges, a) {
			return fmt.Sprintf("its address %s is outside of nodeRanges"+remedy, a, "nodeRanges")
		}
	}
	for _, e := range n.Claim.Endpoints {
		if !inAny(s.NodeRanges, e.Addr()) {
			return fmt.Sprintf("its endpoint %s is outside of nodeRanges"+remedy, e, "nodeRanges")
		}
	}
	for _, p := range n.Claim.PodPrefixes {
		if len(within(s.PodRanges, p)) == 0 {
			return fmt.Sprintf("its pod prefix %s is outside of podRanges"+remedy, p, "podRanges")
		}
	}
	for _, k := range n.Claim.Keys {
		if in.Keys[k.Public] {
			return fmt.Sprintf("it has the key %s of a node of this cluster", k.Public)
		}
	}
	return ""
}

func (in Input) planServices(s Site, r *Report, sources map[record.Key][]*Source) {
	keys := slices.SortedFunc(maps.Keys(s.Services), func(a, b record.Key) int {
		return strings.Compare(a.String(), b.String())
	})
	for _, k := range keys {
		switch {
		case !s.ImportsInto(k.Namespace):
			continue
		case !in.Namespaces[k.Namespace]:
			r.refuse("service %s is not imported: there is no namespace %s here; create it, or "+
				"remove it from imports", k, k.Namespace)
			continue
		}

		accepted := *s.Services[k]
		if accepted.NotCopied != "" {
			r.refuse("service %s: %s", k, accepted.NotCopied)
		}
		var refused []netip.Addr
		accepted.Slices, refused = acceptable(s, accepted.Slices)
		for _, a := range refused {
			r.refuse("endpoint %s of service %s is refused: it is outside of podRanges", a, k)
		}

		first, known := in.Existing[k].First[s.Name]
		if !known {
			first = in.age(s.Services[k].Created)
		}
		r.Imports++
		r.Endpoints += accepted.Endpoints()
		sources[k] = append(sources[k], &Source{Cluster: s.Name, First: first, Service: &accepted})
	}
}

// acceptable returns the endpoints inside podRanges of the site, and the addresses of the others.
func acceptable(s Site, all []record.Slice) (accepted []record.Slice, refused []netip.Addr) {
	for _, slice := range all {
		kept := slice
		kept.Endpoints = nil
		for _, e := range slice.Endpoints {
			if inAny(s.PodRanges, e.Address) {
				kept.Endpoints = append(kept.Endpoints, e)
			} else {
				refused = append(refused, e.Address)
			}
		}
		if len(kept.Endpoints) > 0 {
			accepted = append(accepted, kept)
		}
	}
	return accepted, refused
}

// trusted is how much older than its first sight the export of a site may state to be. It covers
// the time in which one cluster reads another. So two clusters that export a service one after the
// other agree about which of them was first, and a forged time displaces no export that is older.
const trusted = 10 * time.Second

// age returns the age of an export of a site that is seen for the first time. created is what the
// site states, or zero.
func (in Input) age(created time.Time) time.Time {
	earliest := in.Now.Add(-trusted)
	switch {
	case created.IsZero() || created.After(in.Now):
		return in.Now
	case created.Before(earliest):
		return earliest
	}
	return created
}

func inAny(ranges []netip.Prefix, a netip.Addr) bool {
	return slices.ContainsFunc(ranges, func(p netip.Prefix) bool { return p.Contains(a) })
}

// within returns the prefixes whose addresses are all in one of ranges.
func within(ranges []netip.Prefix, prefixes ...netip.Prefix) (out []netip.Prefix) {
	for _, p := range prefixes {
		if slices.ContainsFunc(ranges, func(r netip.Prefix) bool {
			return r.Bits() <= p.Bits() && r.Contains(p.Addr())
		}) {
			out = append(out, p)
		}
	}
	return out
}

// prefixes finds addresses by one look-up per length: a site has thousands of nodes, and its imports
// have thousands of endpoints.
type prefixes struct {
	all     map[netip.Prefix]bool
	lengths map[int]bool
}

func newPrefixes(list []netip.Prefix) prefixes {
	out := prefixes{all: map[netip.Prefix]bool{}, lengths: map[int]bool{}}
	for _, p := range list {
		out.all[p.Masked()], out.lengths[p.Bits()] = true, true
	}
	return out
}

func (x prefixes) contains(a netip.Addr) bool {
	for n := range x.lengths {
		if p, err := a.Prefix(n); err == nil && x.all[p] {
			return true
		}
	}
	return false
}
