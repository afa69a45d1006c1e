package servicefeed

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"reflect"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubeveil/kubeveil/pkg/kube/feed"
	"github.com/kubeveil/kubeveil/pkg/kube/object"
	"github.com/kubeveil/kubeveil/pkg/service"
)

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
			want: "[198.18.0.1 fd42::1] [] [] [] [] [] 0s false false 0"},
		"addresses of outside": {spec: `{"clusterIP":"198.18.0.1","externalIPs":["198.18.9.1"]}`,
			status: `{"loadBalancer":{"ingress":[{"ip":"198.18.8.1"},` +
				`{"ip":"198.18.8.2","ipMode":"Proxy"},{"ip":"198.18.8.3","ipMode":"VIP"},` +
				`{"hostname":"x"}]}}`,
			want: "[198.18.0.1] [198.18.9.1] [198.18.8.1 198.18.8.3] [198.18.8.2] [] [] 0s false false 0"},
		"policies": {spec: `{"clusterIP":"198.18.0.1","externalTrafficPolicy":"Local",` +
			`"internalTrafficPolicy":"Local","healthCheckNodePort":31000}`,
			want: "[198.18.0.1] [] [] [] [] [] 0s true true 31000"},
		"affinity without a timeout": {spec: `{"clusterIP":"198.18.0.1","sessionAffinity":"ClientIP"}`,
			want: "[198.18.0.1] [] [] [] [] [] 3h0m0s false false 0"},
		"affinity with one": {spec: `{"clusterIP":"198.18.0.1","sessionAffinity":"ClientIP",` +
			`"sessionAffinityConfig":{"clientIP":{"timeoutSeconds":7}}}`,
			want: "[198.18.0.1] [] [] [] [] [] 7s false false 0"},
		"ports": {spec: `{"clusterIP":"198.18.0.1","ports":[` +
			`{"name":"a","port":80,"nodePort":30080},{"name":"b","protocol":"UDP","port":53},` +
			`{"name":"c","protocol":"SCTP","port":9}]}`,
			want: "[198.18.0.1] [] [] [] [] [{a TCP 80 30080} {b UDP 53 0} {c SCTP 9 0}] 0s " +
				"false false 0"},
		"a range that cannot be read admits nobody": {
			spec:    `{"clusterIP":"198.18.0.1","loadBalancerSourceRanges":["here"]}`,
			problem: true, want: "[198.18.0.1] [] [] [] [invalid Prefix] [] 0s false false 0"},
		"ranges": {
			spec: `{"clusterIP":"198.18.0.1","loadBalancerSourceRanges":[" 198.18.7.9/24"]}`,
			want: "[198.18.0.1] [] [] [] [198.18.7.0/24] [] 0s false false 0"},
		"an unknown protocol": {
			spec:    `{"clusterIP":"198.18.0.1","ports":[{"protocol":"DCCP","port":80}]}`,
			problem: true, want: "[198.18.0.1] [] [] [] [] [] 0s false false 0"},
		"a malformed address": {spec: `{"clusterIP":"198.18.0.1","externalIPs":["x"]}`,
			problem: true, want: "[198.18.0.1] [] [] [] [] [] 0s false false 0"},
		"a port out of range": {spec: `{"clusterIP":"198.18.0.1","ports":[{"port":70000}]}`,
			problem: true},
		"another shape": {spec: `[]`, problem: true},
	} {
		t.Run(name, func(t *testing.T) {
			o := &object.Object{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web"},
				Spec: json.RawMessage(c.spec), Status: json.RawMessage(c.status)}
			p := parseService(o)
			got := ""
			if s := p.Value; s != nil {
				got = fmt.Sprint(s.ClusterIPs, s.ExternalIPs, s.LoadBalancerIPs, s.BalancerIPs,
					s.SourceRanges, s.Ports, s.Affinity, s.ExternalLocal, s.InternalLocal, s.HealthCheckNodePort)
			}

			if got != c.want || (p.Problem != "") != c.problem {
				t.Errorf("got  %s\nwant %s\nproblem %q", got, c.want, p.Problem)
			}
		})
	}
}

// Missing conditions of an endpoint have the meaning that discovery.k8s.io/v1 defines.
func TestParseEndpointsBySituation(t *testing.T) {
	ready, terminating := service.Endpoint{Ready: true, Serving: true},
		service.Endpoint{Serving: true, Terminating: true}
	for name, c := range map[string]struct {
		endpoint string
		want     *service.Endpoint
	}{
		"no conditions": {`{"addresses":["198.18.1.1"]}`, &ready},
		"nil conditions": {`{"addresses":["198.18.1.1"],` +
			`"conditions":{"ready":null,"serving":null,"terminating":null}}`, &ready},
		"not ready": {`{"addresses":["198.18.1.1"],` +
			`"conditions":{"ready":false,"serving":false}}`, &service.Endpoint{}},
		"it terminates": {`{"addresses":["198.18.1.1"],` +
			`"conditions":{"ready":false,"serving":true,"terminating":true}}`, &terminating},
		"further addresses":     {`{"addresses":["198.18.1.1","198.18.1.2"]}`, &ready},
		"no address":            {`{"addresses":[]}`, nil},
		"an address of no kind": {`{"addresses":["web.example"]}`, nil},
	} {
		t.Run(name, func(t *testing.T) {
			o := &object.Object{
				ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web-1",
					Labels: map[string]string{object.ServiceNameLabel: "web"}},
				AddressType: "IPv4", Endpoints: json.RawMessage("[" + c.endpoint + "]"),
				Ports: json.RawMessage(`[{"name":"a","port":80},{"name":"all"}]`),
			}
			s := parseEndpoints(o).Value
			if s == nil || len(s.Ports) != 1 ||
				s.Ports[0] != (service.SlicePort{Name: "a", Protocol: service.TCP, Port: 80}) {
				t.Fatalf("slice %+v", s)
			}

			var got *service.Endpoint
			if s.Endpoints.Len() == 1 {
				ep := s.Endpoints.At(0)
				ep.Addr = netip.Addr{}
				got = &ep
			}

			if !reflect.DeepEqual(got, c.want) {
				t.Errorf("endpoint %+v, want %+v", got, c.want)
			}
		})
	}

	for name, o := range map[string]*object.Object{
		"of no service": {AddressType: "IPv4"},
		"of host names": {AddressType: "FQDN",
			ObjectMeta: metav1.ObjectMeta{
				Labels: map[string]string{object.ServiceNameLabel: "web"}}},
	} {
		if p := parseEndpoints(o); p.Value != nil || p.Problem != "" {
			t.Errorf("a slice %s: %+v", name, p)
		}
	}
}

func FuzzParseService(f *testing.F) {
	f.Add([]byte(`{"clusterIP":"198.18.0.1","ports":[{"port":80}]}`),
		[]byte(`{"loadBalancer":{"ingress":[{"ip":"198.18.8.1"}]}}`))
	f.Add([]byte(`[{"addresses":["198.18.1.1"]}]`), []byte(`[{"port":80}]`))
	f.Fuzz(func(t *testing.T, a, b []byte) {
		o := &object.Object{AddressType: "IPv4",
			ObjectMeta: metav1.ObjectMeta{
				Labels: map[string]string{object.ServiceNameLabel: "web"}},
			Spec: a, Status: b, Endpoints: a, Ports: b}
		for _, r := range sourceRanges(parseService(o)) {
			if r.IsValid() && r != r.Masked() {
				t.Errorf("range %s has host bits set", r)
			}
		}
		parseEndpoints(o)
	})
}

func sourceRanges(p feed.Parsed[service.Service]) []netip.Prefix {
	if p.Value == nil {
		return nil
	}
	return p.Value.SourceRanges
}
