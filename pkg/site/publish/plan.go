package publish

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sort"
	"strings"
	"time"

	"github.com/kubeveil/kubeveil/pkg/cluster"
	"github.com/kubeveil/kubeveil/pkg/kube/sitenode"
	"github.com/kubeveil/kubeveil/pkg/site/record"
)

// OwnNode is a node of this cluster: its Node and its VeilNode.
type OwnNode struct {
	Name        string
	Created     time.Time
	Addresses   []netip.Addr
	PodPrefixes []netip.Prefix
	// Claim is nil if there is no well-formed VeilNode.
	Claim *cluster.Claim
}

// Input is the state of this cluster.
type Input struct {
	// PodRanges and NodeRanges are the ranges of this cluster in its configuration.
	PodRanges, NodeRanges []netip.Prefix
	Nodes                 []OwnNode
	Exports               []Export
	// Services holds the Services of Exports that exist.
	Services map[record.Key]*Service
}

// Stated is what this cluster states to a site.
type Stated struct {
	// Records holds the specs of the SiteRecords by name.
	Records map[string][]byte
	// Exports is the number of services among them.
	Exports int
	// Problems are sentences about what is left out.
	Problems []string
	// Left are the exports that are left out, because a bound is reached.
	Left []record.Key
}

// Plan returns what this cluster states to a site.
func Plan(in Input, site cluster.Site) Stated {
	out := Stated{Records: map[string][]byte{}}
	if site.Open() {
		out.addNodes(in)
		out.addExports(in, site)
	}
	out.add(record.NameHead, record.Spec{Head: &record.Head{Open: site.Open(),
		PodRanges: in.PodRanges, NodeRanges: in.NodeRanges, Digest: digest(out.Records)}})
	return out
}

// digest returns a digest of records.
func digest(records map[string][]byte) string {
	sum := sha256.New()
	for _, name := range slices.Sorted(maps.Keys(records)) {
		fmt.Fprintf(sum, "%s %d %s\n", name, len(records[name]), records[name])
	}
	return hex.EncodeToString(sum.Sum(nil)[:16])
}

// add adds a record, or a problem, and reports whether it added the record.
func (s *Stated) add(name string, spec record.Spec) bool {
	raw, err := record.Encode(name, spec)
	if err != nil {
		s.Problems = append(s.Problems, err.Error())
		return false
	}
	s.Records[name] = raw
	return true
}

func (s *Stated) addNodes(in Input) {
	nodes := slices.Clone(in.Nodes)
	slices.SortFunc(nodes, func(a, b OwnNode) int {
		return cmp.Or(a.Created.Compare(b.Created), strings.Compare(a.Name, b.Name))
	})
	left, n := 0, 0
	for _, node := range nodes {
		raw, problem := in.encode(node)
		switch {
		case problem != "":
			s.Problems = append(s.Problems, fmt.Sprintf("node %s is not stated: %s", node.Name,
				problem))
		case n == record.MaxNodes:
			left++
		case s.add(record.NameOfNode(node.Name), record.Spec{Node: raw}):
			n++
		}
	}
	if left > 0 {
		s.Problems = append(s.Problems, fmt.Sprintf("%d nodes are not stated, because a site "+
			"reads at most %d", left, record.MaxNodes))
	}
}

// encode returns the spec of a SiteNode for the node, or a sentence about why there is none.
func (in Input) encode(n OwnNode) (raw []byte, problem string) {
	if n.Claim == nil {
		return nil, "it has no well-formed VeilNode; veild writes it"
	}
	if !slices.Equal(sorted(n.PodPrefixes), sorted(n.Claim.PodPrefixes)) {
		return nil, fmt.Sprintf("its VeilNode has the pod prefixes %v, and its Node %v",
			n.Claim.PodPrefixes, n.PodPrefixes)
	}
	addrs := slices.DeleteFunc(slices.Clone(n.Addresses), func(a netip.Addr) bool {
		return !inAny(in.NodeRanges, a)
	})
	if len(addrs) == 0 {
		return nil, "none of its addresses is in nodeRanges"
	}
	raw, err := sitenode.Encode(*n.Claim, addrs)
	if err != nil {
		return nil, err.Error()
	}
	return raw, ""
}

func sorted(p []netip.Prefix) []netip.Prefix {
	p = slices.Clone(p)
	slices.SortFunc(p, netip.Prefix.Compare)
	return p
}

// candidate is an export that can be stated.
type candidate struct {
	Export
	service *record.Service
	left    int // endpoints that are left out
	// share is how much of the room of a site the exports of its namespace take up to this one.
	share int
}

// candidates returns the exports for a site that can be stated. The exports of a namespace are in
// the order of their age, and namespaces take turns by their shares (weighted fair queuing). So a
// namespace with many or large exports leaves out its own newest ones.
func (in Input) candidates(site cluster.Site) (all []candidate) {
	for _, e := range in.Exports {
		svc := in.Services[e.Key]
		if svc != nil && svc.Exportable() == "" && cluster.ExportedTo(e.Annotations, site.Name) {
			c := candidate{Export: e}
			c.service, c.left = e.Record(svc, in.PodRanges)
			all = append(all, c)
		}
	}
	slices.SortFunc(all, func(a, b candidate) int {
		return cmp.Or(a.Created.Compare(b.Created), strings.Compare(a.String(), b.String()))
	})

	type room struct{ services, endpoints int }
	used := map[string]room{}
	for i := range all {
		c := &all[i]
		u := used[c.Namespace]
		u.services, u.endpoints = u.services+1, u.endpoints+c.service.Endpoints()
		used[c.Namespace] = u
		c.share = max(u.services*record.MaxAllEndpoints, u.endpoints*record.MaxServices)
	}
	slices.SortStableFunc(all, func(a, b candidate) int { return cmp.Compare(a.share, b.share) })
	return all
}

func (s *Stated) addExports(in Input, site cluster.Site) {
	room := record.MaxAllEndpoints
	for _, c := range in.candidates(site) {
		if s.Exports == record.MaxServices || c.service.Endpoints() > room {
			s.Left = append(s.Left, c.Key)
			continue
		}
		stated, cut, ok := s.addService(c.Key, c.service)
		if !ok {
			s.Left = append(s.Left, c.Key)
			continue
		}
		if left := c.left + cut; left > 0 {
			s.Problems = append(s.Problems, fmt.Sprintf("%d endpoints of the export %s are not "+
				"stated: they are outside of clusterRanges, or beyond %d, %d EndpointSlices or %d "+
				"bytes", left, c.Key, record.MaxEndpoints, record.MaxSlices, record.MaxSpec))
		}
		s.Exports++
		room -= stated
	}
	if len(s.Left) > 0 {
		s.Problems = append(s.Problems, fmt.Sprintf("%d exports are not stated, because a site "+
			"reads at most %d services and %d endpoints, and each namespace has the same share",
			len(s.Left), record.MaxServices, record.MaxAllEndpoints))
	}
}

// addService adds the record of a service. If its text is too long, it leaves out the names of
// nodes, and then the last endpoints. It returns how many endpoints it added and left out.
func (s *Stated) addService(k record.Key, r *record.Service) (stated, left int, ok bool) {
	name, all := record.NameOfService(k), r.Endpoints()
	fits := func(r *record.Service) bool {
		_, err := record.Encode(name, record.Spec{Service: r})
		return !errors.Is(err, record.ErrTooLarge)
	}
	if !fits(r) {
		n := sort.Search(all+1, func(n int) bool { return !fits(r.First(n)) })
		r = r.First(max(n-1, 0))
	}
	stated = r.Endpoints()
	return stated, all - stated, s.add(name, record.Spec{Service: r})
}
