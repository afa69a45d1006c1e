package mirror_test

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/cluster"
	"github.com/kubeveil/kubeveil/pkg/kube/sitenode"
	"github.com/kubeveil/kubeveil/pkg/site/mirror"
	"github.com/kubeveil/kubeveil/pkg/site/record"
	"github.com/kubeveil/kubeveil/pkg/wgkey"
)

var (
	web  = record.Key{Namespace: "shop", Name: "web"}
	now  = time.Unix(1000, 0)
	ours = wgkey.Public{31: 9}
)

// node returns a node of a site.
func node(key wgkey.Public, addr, prefix string) record.Record {
	return record.Record{Node: "n", Addrs: nettest.Addrs(addr), Claim: &cluster.Claim{
		Keys:        []cluster.Key{{Public: key}},
		Endpoints:   []netip.AddrPort{netip.AddrPortFrom(netip.MustParseAddr(addr), 51820)},
		PodPrefixes: nettest.Prefixes(prefix)}}
}

// service returns a service of port 80 with an endpoint at each address.
func service(addrs ...string) *record.Service {
	port := record.Port{Name: "http", Protocol: "TCP", Port: 80}
	s := &record.Service{V4: true, Ports: []record.Port{port}}
	slice := record.Slice{Ports: []record.Port{port}}
	for _, a := range addrs {
		slice.Endpoints = append(slice.Endpoints, record.Endpoint{Address: netip.MustParseAddr(a),
			Ready: true, Serving: true})
	}
	s.Slices = []record.Slice{slice}
	return s
}

// input returns the input of a cluster with the open site b, which states a node and a service.
func input() mirror.Input {
	return mirror.Input{Cluster: "a", PodRanges: nettest.Prefixes("10.244.0.0/16"),
		NodeRanges: nettest.Prefixes("192.0.2.0/24"), Keys: map[wgkey.Public]bool{ours: true},
		Namespaces: map[string]bool{"shop": true}, Now: now, Sites: []mirror.Site{{
			Site: cluster.Site{Name: "b", Reach: cluster.ReachAll, Imports: []string{"shop"},
				PodRanges:  nettest.Prefixes("10.245.0.0/16"),
				NodeRanges: nettest.Prefixes("198.51.100.0/24")},
			Head: &record.Head{Open: true, PodRanges: nettest.Prefixes("10.245.0.0/16")},
			Nodes: map[string]record.Record{"n": node(wgkey.Public{1}, "198.51.100.1",
				"10.245.1.0/24")},
			Services: map[record.Key]*record.Service{web: service("10.245.1.5")}}}}
}

func TestSiteIsMirrored(t *testing.T) {
	out := mirror.Plan(input())
	_, addrs, err := sitenode.Decode(out.Nodes["b.n"])
	errtest.Must(t, err)
	if len(out.Nodes) != 1 || len(addrs) != 1 || len(out.Imports) != 1 || len(out.Kept) != 0 {
		t.Errorf("%+v", out)
	}
	if r := out.Reports["b"]; r.Nodes != 1 || r.Imports != 1 || r.Endpoints != 1 || r.Refused != 0 {
		t.Errorf("report %+v", r)
	}

	m := out.Imports[web]
	s := m.EndpointSlices(web)
	if len(s) != 1 || s[0].Labels["kubernetes.io/service-name"] != mirror.DerivedName("web") ||
		s[0].Labels["multicluster.kubernetes.io/service-name"] != "web" ||
		s[0].Labels["multicluster.kubernetes.io/source-cluster"] != "b" ||
		s[0].Endpoints[0].Addresses[0] != "10.245.1.5" || *s[0].Ports[0].Port != 80 {
		t.Errorf("slices %+v", s)
	}
	if d := m.Derived(web); len(d.Spec.Selector) > 0 || d.Spec.Ports[0].Port != 80 ||
		d.Spec.IPFamilies[0] != "IPv4" {
		t.Errorf("derived Service %+v", d)
	}
	i, err := m.ServiceImport(web, []string{"10.96.0.9"})
	errtest.Must(t, err)
	if i.Spec.IPs[0] != "10.96.0.9" || i.Status.Clusters[0].Cluster != "b" {
		t.Errorf("import %+v", i)
	}
	if got := mirror.ServiceOf(*i); !slices.Equal(got.Ports, m.Service.Ports) || !got.V4 ||
		got.V6 {
		t.Errorf("the import describes %+v", got)
	}
}

// added states another node, served other endpoints of web.
func added(n record.Record) func(*mirror.Site) {
	return func(s *mirror.Site) { s.Nodes["x"] = n }
}

func served(addrs ...string) func(*mirror.Site) {
	return func(s *mirror.Site) { s.Services[web] = service(addrs...) }
}

// An address or key that does not belong to the site is refused. Everything else is mirrored.
func TestForgedStatementsAreRefused(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(*mirror.Site)
		want   string
	}{
		"node with our address": {added(node(wgkey.Public{2}, "192.0.2.1", "10.245.2.0/24")),
			"address 192.0.2.1 is outside of nodeRanges"},
		"endpoint of a tunnel elsewhere": {func(s *mirror.Site) {
			n := node(wgkey.Public{2}, "198.51.100.2", "10.245.2.0/24")
			n.Claim.Endpoints[0] = netip.MustParseAddrPort("203.0.113.1:51820")
			s.Nodes["x"] = n
		}, "endpoint 203.0.113.1:51820 is outside"},
		"node with our prefix": {added(node(wgkey.Public{2}, "198.51.100.2", "10.244.1.0/24")),
			"pod prefix 10.244.1.0/24 is outside of podRanges"},
		"node with a prefix around podRanges": {
			added(node(wgkey.Public{2}, "198.51.100.2", "10.244.0.0/15")),
			"pod prefix 10.244.0.0/15 is outside of podRanges"},
		"node with our key": {added(node(ours, "198.51.100.2", "10.245.2.0/24")),
			"of a node of this cluster"},
		"our pod": {served("10.245.1.5", "10.244.1.5"),
			"endpoint 10.244.1.5 of service shop/web is refused"},
		"our node":           {served("10.245.1.5", "192.0.2.1"), "endpoint 192.0.2.1"},
		"a node of the site": {served("10.245.1.5", "198.51.100.1"), "endpoint 198.51.100.1"},
		"link-local":         {served("10.245.1.5", "169.254.169.254"), "endpoint 169.254.169.254"},
		"loopback":           {served("10.245.1.5", "127.0.0.1"), "endpoint 127.0.0.1"},
		"outside":            {served("10.245.1.5", "203.0.113.1"), "endpoint 203.0.113.1"},
		"a namespace that does not exist": {func(s *mirror.Site) {
			s.Imports = []string{cluster.AllNamespaces}
			s.Services[record.Key{Namespace: "none", Name: "web"}] = service("10.245.1.5")
		}, "there is no namespace none here; create it"},
	} {
		t.Run(name, func(t *testing.T) {
			in := input()
			tt.change(&in.Sites[0])
			out := mirror.Plan(in)
			r := out.Reports["b"]
			if !strings.Contains(strings.Join(r.Problems, "\n"), tt.want) || r.Refused != 1 {
				t.Errorf("refused %d, problems %q, want %q", r.Refused, r.Problems, tt.want)
			}
			if names := slices.Collect(maps.Keys(out.Nodes)); !slices.Equal(names,
				[]string{"b.n"}) ||
				r.Endpoints != 1 || len(out.Imports) != 1 {
				t.Errorf("nodes %q, %d endpoints", names, r.Endpoints)
			}
		})
	}
}

// A site can make any number of problems. They are counted, and a bounded number is shown.
func TestProblemsAreBounded(t *testing.T) {
	in := input()
	for i := range 1000 {
		in.Sites[0].Nodes[fmt.Sprint("x", i)] = node(wgkey.Public{2}, "192.0.2.1", "10.245.2.0/24")
	}
	if r := mirror.Plan(in).Reports["b"]; r.Refused != 1000 || len(r.Problems) != 24 {
		t.Errorf("refused %d, %d problems", r.Refused, len(r.Problems))
	}
}

func TestNothingOfASiteIsMirrored(t *testing.T) {
	for name, tt := range map[string]struct {
		change  func(*mirror.Input)
		overlap string
		nodes   int
	}{
		"closed": {func(in *mirror.Input) { in.Sites[0].Reach = cluster.ReachNone },
			"", 0},
		"no namespace accepted": {func(in *mirror.Input) { in.Sites[0].Imports = nil }, "", 1},
		"its pods overlap ours": {func(in *mirror.Input) {
			in.Sites[0].Head.PodRanges = nettest.Prefixes("10.244.128.0/17")
		}, "10.244.128.0/17 of b overlaps 10.244.0.0/16 of this cluster", 0},
		"its nodes overlap our nodes": {func(in *mirror.Input) {
			in.Sites[0].Head.NodeRanges = nettest.Prefixes("192.0.0.0/16")
		}, "192.0.0.0/16 of b overlaps 192.0.2.0/24 of this cluster", 0},
		"its pods overlap another site's": {func(in *mirror.Input) {
			in.Sites = append(in.Sites, mirror.Site{Site: cluster.Site{Name: "c",
				PodRanges: nettest.Prefixes("10.245.0.0/24")}})
		}, "10.245.0.0/16 of b overlaps 10.245.0.0/24 of site c", 0},
	} {
		t.Run(name, func(t *testing.T) {
			in := input()
			tt.change(&in)
			out := mirror.Plan(in)
			overlap := out.Reports["b"].Overlap
			if len(out.Nodes) != tt.nodes || len(out.Imports) != 0 ||
				(tt.overlap == "") != (overlap == "") ||
				!strings.Contains(overlap, tt.overlap) {
				t.Errorf("nodes %v, imports %v, overlap %q", out.Nodes, out.Imports, overlap)
			}
		})
	}
}

// A site that is not read yet keeps its objects, also where other clusters export the service.
// Those outside of its ranges go, and endpoints on nodes that do not answer come last.
func TestUnreadSiteIsKept(t *testing.T) {
	in := input()
	first := mirror.Plan(in)
	i, err := first.Imports[web].ServiceImport(web, nil)
	errtest.Must(t, err)
	had := first.Imports[web].EndpointSlices(web)
	written := []record.Slice{mirror.SliceOf(*had[0])}

	in.Existing = map[record.Key]mirror.Existing{web: {First: map[string]time.Time{"b": now},
		Service: mirror.ServiceOf(*i), Slices: map[string][]record.Slice{"b": written}}}
	in.Sites[0].Head = nil
	in.Own = map[record.Key]mirror.Own{web: {Created: now.Add(time.Hour),
		Service: service("10.244.1.5")}}
	out := mirror.Plan(in)
	m := out.Imports[web]
	if !out.Kept["b"] || len(out.Nodes) != 0 || len(m.Sources) != 2 || m.Sources[0].Cluster != "b" {
		t.Fatalf("%+v, sources %+v", out, m.Sources)
	}
	s := m.EndpointSlices(web)
	if len(s) != 2 || !equality.Semantic.DeepEqual(s[0], had[0]) ||
		s[1].Labels["multicluster.kubernetes.io/source-cluster"] != "a" ||
		!slices.Equal(m.Service.Ports, mirror.ServiceOf(*i).Ports) {
		t.Errorf("slices %+v, had %+v, ports %+v", s, had, m.Service.Ports)
	}

	in.Dead = nettest.Prefixes("10.245.1.0/24")
	dead := []string{"10.245.1.5"}
	if last := lastOf(t, mirror.Plan(in).Imports[web]); !slices.Equal(last, dead) {
		t.Errorf("last are %q", last)
	}
	in.Existing[web].Slices["b"][0] = mirror.SliceOf(*mirror.Plan(in).Imports[web].EndpointSlices(
		web)[0])
	in.Dead = nil
	if last := lastOf(t, mirror.Plan(in).Imports[web]); !slices.Equal(last, dead) {
		t.Errorf("last are %q after a start", last)
	}
	in.Sites[0].PodRanges = nettest.Prefixes("10.245.2.0/24")
	if s := mirror.Plan(in).Imports[web].EndpointSlices(web); len(s) != 1 {
		t.Errorf("slices %+v", s)
	}
}

// The oldest export decides. A site's age counts from the time at which it was first seen.
func TestOldestExportWins(t *testing.T) {
	in := input()
	in.Sites[0].Services[web].Headless = true
	in.Sites[0].Services[web].Ports = []record.Port{{Name: "http", Protocol: "TCP", Port: 8080},
		{Name: "more", Protocol: "TCP", Port: 81}}
	in.Own = map[record.Key]mirror.Own{web: {Created: now.Add(-time.Hour),
		Service: service("10.244.1.5")}}
	m := mirror.Plan(in).Imports[web]
	if m.Sources[0].Cluster != "a" || m.Service.Headless || len(m.Service.Ports) != 2 ||
		m.Service.Ports[0].Port != 80 || m.Service.Ports[1].Name != "more" ||
		!slices.Equal(m.Reasons, []string{"PortConflict", "TypeConflict"}) ||
		!strings.Contains(m.Conflict, "the exports of b differ from the export of a") {
		t.Errorf("%+v", m)
	}

	in.Existing = map[record.Key]mirror.Existing{web: {
		First: map[string]time.Time{"b": now.Add(-2 * time.Hour)}}}
	m = mirror.Plan(in).Imports[web]
	if m.Sources[0].Cluster != "b" || !m.Service.Headless || m.Service.Ports[0].Port != 8080 {
		t.Errorf("%+v", m)
	}
}

// Slices have one family, a bounded size, and only ports that the import has.
func TestEndpointSlices(t *testing.T) {
	in := input()
	s := service()
	for i := range 600 {
		s.Slices[0].Endpoints = append(s.Slices[0].Endpoints, record.Endpoint{
			Address: netip.AddrFrom4([4]byte{10, 245, byte(i >> 8), byte(i)})})
	}
	s.Slices[0].Endpoints = append(s.Slices[0].Endpoints, record.Endpoint{
		Address: netip.MustParseAddr("fd45::1")})
	s.Slices[0].Ports = append(s.Slices[0].Ports, record.Port{Name: "none", Protocol: "TCP",
		Port: 1})
	in.Sites[0].PodRanges = append(in.Sites[0].PodRanges, netip.MustParsePrefix("fd45::/16"))
	in.Sites[0].Services[web] = s

	var got []string
	for _, s := range mirror.Plan(in).Imports[web].EndpointSlices(web) {
		got = append(got, fmt.Sprintf("%s %s %d %d", strings.TrimPrefix(s.Name,
			mirror.DerivedName("web")), s.AddressType, len(s.Endpoints), len(s.Ports)))
	}
	if want := []string{"-b-0 IPv4 500 1", "-b-1 IPv4 100 1", "-b-2 IPv6 1 1"}; !slices.Equal(got,
		want) {
		t.Errorf("slices %q, want %q", got, want)
	}
}
