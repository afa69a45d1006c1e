package kube

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"reflect"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/service"
)

// tellTale is a sink that records its calls.
type tellTale struct {
	mu       sync.Mutex
	services map[service.Name]service.Service
	slices   map[string]service.Slice // by service and name
	listed   int
	calls    int
}

func (s *tellTale) do(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls++
	f()
}

func (s *tellTale) PutService(v service.Service) { s.do(func() { s.services[v.Name] = v }) }
func (s *tellTale) DeleteService(n service.Name) { s.do(func() { delete(s.services, n) }) }
func (s *tellTale) PutSlice(v service.Slice) {
	s.do(func() { s.slices[v.Service.String()+" "+v.Name] = v })
}
func (s *tellTale) DeleteSlice(n service.Name, name string) {
	s.do(func() { delete(s.slices, n.String()+" "+name) })
}
func (s *tellTale) Listed() { s.do(func() { s.listed++ }) }

func (s *tellTale) wait(t *testing.T, what string, so func() bool) {
	t.Helper()
	t.Cleanup(func() {
		if t.Failed() {
			s.mu.Lock()
			defer s.mu.Unlock()
			t.Logf("services %v, slices %v, listed %d", s.services, s.slices, s.listed)
		}
	})
	nettest.Until(t, 10*time.Second, what, func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return so()
	})
}

func serviceObject(name string, port int) map[string]any {
	return map[string]any{
		"metadata": map[string]any{"name": name, "namespace": "shop"},
		"spec": map[string]any{"type": "ClusterIP", "clusterIP": "198.18.128.10",
			"ports": []any{map[string]any{"port": port, "protocol": "TCP"}}},
	}
}

func sliceObject(name, owner, addr string) map[string]any {
	return map[string]any{
		"metadata": map[string]any{"name": name, "namespace": "shop",
			"labels": map[string]any{"kubernetes.io/service-name": owner}},
		"addressType": "IPv4", "ports": []any{map[string]any{"name": "", "protocol": "TCP",
			"port": 8080}},
		"endpoints": []any{map[string]any{"addresses": []any{addr}, "nodeName": "node-1"}},
	}
}

func TestRunServices(t *testing.T) {
	for _, tc := range []struct{ noProto, noStream bool }{{}, {noStream: true}, {noProto: true},
		{noProto: true, noStream: true}} {
		t.Run(fmt.Sprintf("%+v", tc), func(t *testing.T) {
			f := newFakeServer(t)
			f.noProto, f.noStream = tc.noProto, tc.noStream
			testRunServices(t, f)
			if asked := f.count("protobuf " + servicesPath); asked > 0 == tc.noProto {
				t.Errorf("%d answers were protobuf", asked)
			}
		})
	}
}

func testRunServices(t *testing.T, f *fakeServer) {
	f.put(servicesPath, serviceObject("web", 80))
	f.put(allSlicesPath, sliceObject("web-1", "web", "198.18.1.1"))
	c, err := newClient(Options{Node: "node-1"}, f.config())
	if err != nil {
		t.Fatal(err)
	}
	c.times = quick
	sink := &tellTale{services: map[service.Name]service.Service{},
		slices: map[string]service.Slice{}}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- c.RunServices(ctx, service.DefaultLimits, sink) }()
	defer func() { cancel(); <-done }()

	sink.wait(t, "listed", func() bool {
		return sink.listed == 1 && len(sink.services) == 1 && len(sink.slices) == 1
	})
	f.put(allSlicesPath, sliceObject("web-1", "web", "198.18.1.2"))
	sink.wait(t, "changed", func() bool {
		s := sink.slices["shop/web web-1"]
		return len(s.Endpoints) == 1 && s.Endpoints[0].Addr.String() == "198.18.1.2" &&
			s.Endpoints[0].Ready
	})
	f.put(allSlicesPath, sliceObject("web-1", "other", "198.18.1.2"))
	sink.wait(t, "moved to another service", func() bool {
		_, was := sink.slices["shop/web web-1"]
		_, is := sink.slices["shop/other web-1"]
		return !was && is
	})
	// The next list shows deletions that no watch reported.
	f.setAway(true)
	f.remove(servicesPath, "web")
	f.put(servicesPath, serviceObject("next", 81))
	f.setAway(false)
	sink.wait(t, "read again", func() bool {
		_, old := sink.services[service.Name{Namespace: "shop", Name: "web"}]
		_, now := sink.services[service.Name{Namespace: "shop", Name: "next"}]
		return !old && now && sink.listed == 1
	})
	// Another resource version with the same content does not count as a change.
	sink.mu.Lock()
	calls := sink.calls
	sink.mu.Unlock()
	f.put(servicesPath, serviceObject("next", 81))
	f.put(servicesPath, serviceObject("last", 82))
	sink.wait(t, "last", func() bool { return len(sink.services) == 2 })
	if sink.calls != calls+1 {
		t.Errorf("%d calls for one change", sink.calls-calls)
	}
	// A service that became headless or malformed no longer counts.
	headless := serviceObject("last", 82)
	headless["spec"].(map[string]any)["clusterIP"] = "None"
	f.put(servicesPath, headless)
	malformed := serviceObject("next", 70000)
	f.put(servicesPath, malformed)
	sink.wait(t, "none left", func() bool { return len(sink.services) == 0 })
	if got := c.Problems(); len(got) != 1 {
		t.Errorf("problems %q, want that of the malformed service", got)
	}
}

// Beside another proxy, the API servers' own service is all that is read.
func TestRunAPIServers(t *testing.T) {
	f := newFakeServer(t)
	own := serviceObject("kubernetes", 443)
	own["metadata"].(map[string]any)["namespace"] = "default"
	f.put(apiServicesPath, own)
	f.put(servicesPath, serviceObject("web", 80))
	endpoints := sliceObject("kubernetes", "kubernetes", "198.18.0.2")
	endpoints["metadata"].(map[string]any)["namespace"] = "default"
	f.put(slicesPath, endpoints)
	f.put(allSlicesPath, sliceObject("web-1", "web", "198.18.1.1"))

	c, err := newClient(Options{Node: "node-1"}, f.config())
	if err != nil {
		t.Fatal(err)
	}
	c.times = quick
	sink := &tellTale{services: map[service.Name]service.Service{},
		slices: map[string]service.Slice{}}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- c.RunAPIServers(ctx, sink) }()
	defer func() { cancel(); <-done }()

	sink.wait(t, "listed", func() bool {
		_, has := sink.services[service.Name{Namespace: "default", Name: "kubernetes"}]
		_, leads := sink.slices["default/kubernetes kubernetes"]
		return sink.listed == 1 && has && leads && len(sink.services) == 1 && len(sink.slices) == 1
	})
	for _, path := range []string{servicesPath, allSlicesPath} {
		if asked := f.count("GET " + path); asked > 0 {
			t.Errorf("%s was read %d times", path, asked)
		}
	}
	// RBAC grants a list by names of objects only with this selector.
	for _, k := range []kind{apiServiceKind, sliceKind} {
		if got := selected(k, metav1.ListOptions{}).FieldSelector; got !=
			"metadata.name=kubernetes" {
			t.Errorf("%s: selector %q", k.what, got)
		}
	}
}

func TestServiceListIsChosenByLabels(t *testing.T) {
	for _, k := range []kind{serviceKind, endpointsKind} {
		if got := selected(k, metav1.ListOptions{}).LabelSelector; got !=
			"!service.kubernetes.io/service-proxy-name,!service.kubernetes.io/headless" {
			t.Errorf("%s: selector %q", k.what, got)
		}
	}
	if got := selected(nodeKind, metav1.ListOptions{}).LabelSelector; got != "" {
		t.Errorf("nodes: selector %q", got)
	}
}

func TestParseServiceBySituation(t *testing.T) {
	for name, c := range map[string]struct {
		spec, status string
		want         string // the service in Go; "" means that there is no value
		problem      bool
	}{
		"headless":       {spec: `{"clusterIP":"None","clusterIPs":["None"]}`},
		"external name":  {spec: `{"type":"ExternalName","externalName":"example.com"}`},
		"no address yet": {spec: `{"type":"ClusterIP"}`},
		"two families": {spec: `{"clusterIP":"198.18.0.1","clusterIPs":["198.18.0.1","fd42::1"]}`,
			want: "[198.18.0.1 fd42::1] [] [] [] [] 0s false false 0"},
		"addresses of outside": {spec: `{"clusterIP":"198.18.0.1","externalIPs":["198.18.9.1"]}`,
			status: `{"loadBalancer":{"ingress":[{"ip":"198.18.8.1"},{"ip":"198.18.8.2","ipMode":"Proxy"},{"ip":"198.18.8.3","ipMode":"VIP"},{"hostname":"x"}]}}`, want: "[198.18.0.1] [198.18.9.1] [198.18.8.1 198.18.8.3] [] [] 0s false false 0"},
		"policies": {spec: `{"clusterIP":"198.18.0.1","externalTrafficPolicy":"Local","internalTrafficPolicy":"Local","healthCheckNodePort":31000}`,
			want: "[198.18.0.1] [] [] [] [] 0s true true 31000"},
		"affinity without a timeout": {spec: `{"clusterIP":"198.18.0.1","sessionAffinity":"ClientIP"}`, want: "[198.18.0.1] [] [] [] [] 3h0m0s false false 0"},
		"affinity with one":          {spec: `{"clusterIP":"198.18.0.1","sessionAffinity":"ClientIP","sessionAffinityConfig":{"clientIP":{"timeoutSeconds":7}}}`, want: "[198.18.0.1] [] [] [] [] 7s false false 0"},
		"ports": {spec: `{"clusterIP":"198.18.0.1","ports":[{"name":"a","port":80,"nodePort":30080},{"name":"b","protocol":"UDP","port":53},{"name":"c","protocol":"SCTP","port":9}]}`,
			want: "[198.18.0.1] [] [] [] [{a TCP 80 30080} {b UDP 53 0} {c SCTP 9 0}] 0s " +
				"false false 0"},
		"a range that cannot be read " +
			"admits nobody": {spec: `{"clusterIP":"198.18.0.1","loadBalancerSourceRanges":["here"]}`, problem: true,
			want: "[198.18.0.1] [] [] [invalid Prefix] [] 0s false false 0"},
		"ranges":              {spec: `{"clusterIP":"198.18.0.1","loadBalancerSourceRanges":[" 198.18.7.9/24"]}`, want: "[198.18.0.1] [] [] [198.18.7.0/24] [] 0s false false 0"},
		"an unknown protocol": {spec: `{"clusterIP":"198.18.0.1","ports":[{"protocol":"DCCP","port":80}]}`, problem: true, want: "[198.18.0.1] [] [] [] [] 0s false false 0"},
		"a malformed address": {spec: `{"clusterIP":"198.18.0.1","externalIPs":["x"]}`,
			problem: true, want: "[198.18.0.1] [] [] [] [] 0s false false 0"},
		"a port out of range": {spec: `{"clusterIP":"198.18.0.1","ports":[{"port":70000}]}`,
			problem: true},
		"another shape": {spec: `[]`, problem: true},
	} {
		t.Run(name, func(t *testing.T) {
			o := &object{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web"},
				Spec: json.RawMessage(c.spec), Status: json.RawMessage(c.status)}
			p := parseService(o)
			got := ""
			if s := p.value; s != nil {
				got = fmt.Sprint(s.ClusterIPs, s.ExternalIPs, s.LoadBalancerIPs, s.SourceRanges,
					s.Ports, s.Affinity, s.ExternalLocal, s.InternalLocal, s.HealthCheckNodePort)
			}

			if got != c.want || (p.problem != "") != c.problem {
				t.Errorf("got  %s\nwant %s\nproblem %q", got, c.want, p.problem)
			}
		})
	}
}

// The conditions mean what discovery.k8s.io/v1 says when they are absent.
func TestParseEndpointsBySituation(t *testing.T) {
	ready, terminating := service.Endpoint{Ready: true, Serving: true},
		service.Endpoint{Serving: true, Terminating: true}
	for name, c := range map[string]struct {
		endpoint string
		want     *service.Endpoint
	}{
		"no conditions":         {`{"addresses":["198.18.1.1"]}`, &ready},
		"nil conditions":        {`{"addresses":["198.18.1.1"],"conditions":{"ready":null,"serving":null,"terminating":null}}`, &ready},
		"not ready":             {`{"addresses":["198.18.1.1"],"conditions":{"ready":false,"serving":false}}`, &service.Endpoint{}},
		"it terminates":         {`{"addresses":["198.18.1.1"],"conditions":{"ready":false,"serving":true,"terminating":true}}`, &terminating},
		"further addresses":     {`{"addresses":["198.18.1.1","198.18.1.2"]}`, &ready},
		"no address":            {`{"addresses":[]}`, nil},
		"an address of no kind": {`{"addresses":["web.example"]}`, nil},
	} {
		t.Run(name, func(t *testing.T) {
			o := &object{
				ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web-1",
					Labels: map[string]string{serviceNameLabel: "web"}},
				AddressType: "IPv4", Endpoints: json.RawMessage("[" + c.endpoint + "]"),
				Ports: json.RawMessage(`[{"name":"a","port":80},{"name":"all"}]`),
			}
			s := parseEndpoints(o).value
			if s == nil || len(s.Ports) != 1 ||
				s.Ports[0] != (service.SlicePort{Name: "a", Protocol: service.TCP, Port: 80}) {
				t.Fatalf("slice %+v", s)
			}

			var got *service.Endpoint
			if len(s.Endpoints) == 1 {
				ep := s.Endpoints[0]
				ep.Addr = netip.Addr{}
				got = &ep
			}

			if !reflect.DeepEqual(got, c.want) {
				t.Errorf("endpoint %+v, want %+v", got, c.want)
			}
		})
	}

	for name, o := range map[string]*object{
		"of no service": {AddressType: "IPv4"},
		"of host names": {AddressType: "FQDN",
			ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{serviceNameLabel: "web"}}},
	} {
		if p := parseEndpoints(o); p.value != nil || p.problem != "" {
			t.Errorf("a slice %s: %+v", name, p)
		}
	}
}

func FuzzParseService(f *testing.F) {
	f.Add([]byte(`{"clusterIP":"198.18.0.1","ports":[{"port":80}]}`),
		[]byte(`{"loadBalancer":{"ingress":[{"ip":"198.18.8.1"}]}}`))
	f.Add([]byte(`[{"addresses":["198.18.1.1"]}]`), []byte(`[{"port":80}]`))
	f.Fuzz(func(t *testing.T, a, b []byte) {
		o := &object{AddressType: "IPv4",
			ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{serviceNameLabel: "web"}},
			Spec:       a, Status: b, Endpoints: a, Ports: b}
		for _, r := range sourceRanges(parseService(o)) {
			if r.IsValid() && r != r.Masked() {
				t.Errorf("range %s has host bits set", r)
			}
		}
		parseEndpoints(o)
	})
}

func sourceRanges(p parsed[service.Service]) []netip.Prefix {
	if p.value == nil {
		return nil
	}
	return p.value.SourceRanges
}
