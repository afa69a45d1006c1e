package publish_test

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/cluster"
	"github.com/kubeveil/kubeveil/pkg/site/publish"
	"github.com/kubeveil/kubeveil/pkg/site/record"
	"github.com/kubeveil/kubeveil/pkg/wgkey"
)

var (
	open   = cluster.Site{Name: "a", Reach: cluster.ReachAll}
	closed = cluster.Site{Name: "a", Reach: cluster.ReachNone}
	web    = record.Key{Namespace: "shop", Name: "web"}
)

// node returns a node with a prefix, an address and a key by its number.
func node(i int) publish.OwnNode {
	prefix := netip.MustParsePrefix(fmt.Sprintf("10.244.%d.0/24", i%256))
	return publish.OwnNode{Name: fmt.Sprintf("node-%d", i), Created: time.Unix(int64(i), 0),
		Addresses:   nettest.Addrs("192.0.2." + fmt.Sprint(i%250+1)),
		PodPrefixes: []netip.Prefix{prefix}, Claim: &cluster.Claim{
			Keys:        []cluster.Key{{Public: wgkey.Public{byte(i), byte(i >> 8), 1}}},
			PodPrefixes: []netip.Prefix{prefix}}}
}

// service returns a Service of port 80 with these endpoints.
func service(addrs ...string) *publish.Service {
	s := &publish.Service{Spec: corev1.ServiceSpec{ClusterIP: "10.96.0.9",
		IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol},
		Ports:      []corev1.ServicePort{{Protocol: corev1.ProtocolTCP, Port: 80}}}}
	port := int32(8080)
	slice := discoveryv1.EndpointSlice{Ports: []discoveryv1.EndpointPort{{Port: &port}}}
	for _, a := range addrs {
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{Addresses: []string{a}})
	}
	s.Slices = []discoveryv1.EndpointSlice{slice}
	return s
}

func input() publish.Input {
	return publish.Input{PodRanges: nettest.Prefixes("10.244.0.0/16"),
		NodeRanges: nettest.Prefixes("192.0.2.0/24"), Nodes: []publish.OwnNode{node(1)},
		Exports:  []publish.Export{{Key: web}},
		Services: map[record.Key]*publish.Service{web: service("10.244.1.5")}}
}

func names(s publish.Stated) []string { return slices.Sorted(maps.Keys(s.Records)) }

// An open site reads nodes and exports, a closed one only the ranges.
func TestClosedSiteReadsRangesOnly(t *testing.T) {
	want := []string{"head", "node.node-1", "service.shop.web"}
	s := publish.Plan(input(), open)
	if got := names(s); !slices.Equal(got, want) || s.Exports != 1 || len(s.Problems) > 0 {
		t.Errorf("records %q, problems %q", got, s.Problems)
	}
	r, err := record.Decode("service.shop.web", s.Records["service.shop.web"])
	errtest.Must(t, err)
	if e := r.Service.Slices[0].Endpoints; len(e) != 1 || !e[0].Ready || !e[0].Serving ||
		r.Service.Slices[0].Ports[0].Port != 8080 || r.Service.Ports[0].Port != 80 {
		t.Errorf("service %+v", r.Service)
	}
	s = publish.Plan(input(), closed)
	if got := names(s); !slices.Equal(got, []string{"head"}) {
		t.Errorf("records %q", got)
	}
}

// What is not stated: each costs only itself, and is shown unless its owner wants it so.
func TestNotStated(t *testing.T) {
	for name, tt := range map[string]struct {
		change  func(*publish.Input)
		gone    string
		problem string
	}{
		"another site": {func(in *publish.Input) {
			in.Exports[0].Annotations = map[string]string{cluster.SitesAnnotation: "c"}
		}, "service.shop.web", ""},
		"no Service": {func(in *publish.Input) { in.Services = nil }, "service.shop.web", ""},
		"a name outside": {func(in *publish.Input) {
			in.Services[web].Spec.Type = corev1.ServiceTypeExternalName
		}, "service.shop.web", ""},
		"an import": {func(in *publish.Input) { in.Services[web].Derived = true },
			"service.shop.web", ""},
		"a node without VeilNode": {func(in *publish.Input) { in.Nodes[0].Claim = nil },
			"node.node-1", "it has no well-formed VeilNode"},
		"another node's prefix": {func(in *publish.Input) {
			in.Nodes[0].Claim.PodPrefixes = nettest.Prefixes("10.244.2.0/24")
		}, "node.node-1", "its VeilNode has the pod prefixes [10.244.2.0/24], and its Node"},
		"an address outside": {func(in *publish.Input) {
			in.Nodes[0].Addresses = nettest.Addrs("203.0.113.1")
		}, "node.node-1", "none of its addresses is in nodeRanges"},
		"an endpoint outside": {func(in *publish.Input) {
			in.Services[web] = service("10.244.1.5", "192.0.2.1")
		}, "", "1 endpoints of the export shop/web are not stated"},
	} {
		t.Run(name, func(t *testing.T) {
			in := input()
			tt.change(&in)
			s := publish.Plan(in, open)
			want := slices.DeleteFunc([]string{"head", "node.node-1", "service.shop.web"},
				func(n string) bool { return n == tt.gone })
			problems := strings.Join(s.Problems, "\n")
			if got := names(s); !slices.Equal(got, want) ||
				(tt.problem == "") != (problems == "") ||
				!strings.Contains(problems, tt.problem) {
				t.Errorf("records %q, problems %q", got, problems)
			}
		})
	}
}

// Beyond the bounds the newest are left out.
func TestNewestAreLeftOut(t *testing.T) {
	in := input()
	in.Nodes, in.Exports = nil, nil
	for i := range record.MaxNodes + 2 {
		in.Nodes = append(in.Nodes, node(record.MaxNodes+1-i))
	}
	for i := range record.MaxServices + 3 {
		k := record.Key{Namespace: "shop", Name: fmt.Sprintf("web-%d", i)}
		in.Exports = append(in.Exports, publish.Export{Key: k, Created: time.Unix(-int64(i), 0)})
		in.Services[k] = service("10.244.1.5")
	}

	s := publish.Plan(in, open)
	problems := strings.Join(s.Problems, "\n")
	if len(s.Records) != 1+record.MaxNodes+record.MaxServices || s.Exports != record.MaxServices ||
		len(s.Left) != 3 || s.Records["node.node-1001"] != nil || s.Records["node.node-0"] == nil ||
		s.Records["service.shop.web-2"] != nil ||
		!strings.Contains(problems, "2 nodes are not stated") ||
		!strings.Contains(problems, "3 exports are not stated") {
		t.Errorf("%d records, left %v, problems %q", len(s.Records), s.Left, problems)
	}
}

// A namespace with many exports, or with large ones, leaves out its own newest, although they are
// older than the exports of another namespace.
func TestNamespacesShareTheRoom(t *testing.T) {
	var large []string
	for i := range record.MaxEndpoints {
		large = append(large, fmt.Sprintf("10.244.%d.%d", i/250, i%250+1))
	}
	for name, c := range map[string]struct {
		service *publish.Service
		exports int
	}{
		"many":  {service("10.244.1.5"), record.MaxServices + 5},
		"large": {service(large...), record.MaxAllEndpoints/record.MaxEndpoints + 5},
	} {
		t.Run(name, func(t *testing.T) {
			in := input()
			in.Exports = []publish.Export{{Key: web, Created: time.Unix(1000000, 0)}}
			for i := range c.exports {
				k := record.Key{Namespace: "greedy", Name: fmt.Sprintf("web-%d", i)}
				in.Exports = append(in.Exports, publish.Export{Key: k, Created: time.Unix(int64(i), 0)})
				in.Services[k] = c.service
			}

			s := publish.Plan(in, open)
			newest := record.Key{Namespace: "greedy", Name: fmt.Sprintf("web-%d", c.exports-1)}
			if s.Records["service.shop.web"] == nil || s.Records["service.greedy.web-0"] == nil ||
				!slices.Contains(s.Left, newest) || len(s.Left)+s.Exports != c.exports+1 {
				t.Errorf("%d exports are stated, %d are left out", s.Exports, len(s.Left))
			}
		})
	}
}

// An export whose text is too long is stated without names of nodes, and then with fewer endpoints.
func TestLongExportIsShortened(t *testing.T) {
	long := strings.Repeat("n", 63)
	for name, c := range map[string]struct {
		node, host string
		cut        bool
	}{"names of nodes": {long + "." + long, "", false}, "names of hosts": {"", long, true}} {
		t.Run(name, func(t *testing.T) {
			in := input()
			svc := service("10.244.1.5")
			endpoints := &svc.Slices[0].Endpoints
			for len(*endpoints) < record.MaxEndpoints {
				*endpoints = append(*endpoints, (*endpoints)[0])
			}
			for i := range *endpoints {
				(*endpoints)[i].NodeName, (*endpoints)[i].Hostname = &c.node, &c.host
				(*endpoints)[i].Addresses = []string{"fd00:0:0:0:1234:5678:9abc:def0"}
			}
			in.PodRanges = nettest.Prefixes("fd00::/64")
			in.Services[web] = svc

			s := publish.Plan(in, open)
			raw := s.Records["service.shop.web"]
			r, err := record.Decode("service.shop.web", raw)
			errtest.Must(t, err)
			n := r.Service.Endpoints()
			if c.cut != (n < record.MaxEndpoints) || n < record.MaxEndpoints/2 || s.Exports != 1 ||
				c.cut != strings.Contains(strings.Join(s.Problems, "\n"),
					fmt.Sprintf("%d endpoints of the export", record.MaxEndpoints-n)) {
				t.Errorf("%d endpoints in %d bytes, problems %q", n, len(raw), s.Problems)
			}
		})
	}
}

// The record of a service has the settings of the Service, and the age of its export.
func TestSettingsAreStated(t *testing.T) {
	in := input()
	in.Exports[0].Created = time.Unix(1000, 0).UTC()
	local, hint := corev1.ServiceInternalTrafficPolicyLocal, "PreferClose"
	in.Services[web].Spec.InternalTrafficPolicy = &local
	in.Services[web].Spec.TrafficDistribution = &hint
	r, err := record.Decode("service.shop.web", publish.Plan(in, open).Records["service.shop.web"])
	errtest.Must(t, err)
	if s := r.Service; !s.InternalLocal || s.TrafficDistribution != hint ||
		!s.Created.Equal(in.Exports[0].Created) {
		t.Errorf("%+v", s)
	}
}
