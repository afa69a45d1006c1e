package record_test

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/pkg/site/record"
	"github.com/kubeveil/kubeveil/pkg/wgkey"
)

var node = fmt.Sprintf(`{"keys":[{"epoch":1,"publicKey":"%s"}],"addresses":["198.18.1.11"]}`,
	wgkey.Public{1})

// service returns a spec with a service that has a port and these slices.
func service(slices string) string {
	return `{"service":{"ports":[{"name":"http","protocol":"TCP","port":80}],"slices":[` + slices +
		`]}}`
}

func endpoint(fields string) string { return service(`{"endpoints":[{` + fields + `}]}`) }

func TestDecode(t *testing.T) {
	good := `"address":"10.245.1.5","ready":true`
	many := strings.Repeat(`{`+good+`},`, record.MaxEndpoints)

	for _, c := range []struct{ situation, name, spec, want string }{
		{"head", "head", `{"head":{"open":true,"podRanges":["10.245.0.0/16"]}}`, ""},
		{"a range with bits", "head", `{"head":{"podRanges":["10.245.0.1/16"]}}`, "not a range"},
		{"node", "node.n-1.example", `{"node":` + node + `}`, ""},
		{"a node without key", "node.n-1", `{"node":{"addresses":["198.18.1.11"]}}`, "0 keys"},
		{"a name that is no node's", "node.-", `{"node":` + node + `}`, "not a name of a node"},
		{"a long name", "node." + strings.Repeat("n", 181), `{"node":` + node + `}`, "180 bytes"},
		{"service", "service.shop.web", endpoint(good), ""},
		{"a field of a newer version", "service.shop.web", endpoint(good + `,"zone":"z"`), ""},
		{"headless without ports", "service.shop.web", `{"service":{"headless":true}}`, ""},
		{"no port", "service.shop.web", `{"service":{}}`, "it has no port"},
		{"no name", "service.shop", endpoint(good), "does not name"},
		{"a name with a dot", "service.shop.web.x", endpoint(good), "does not name"},
		{"another kind", "thing.shop", endpoint(good), "does not have the content"},
		{"content of another kind", "service.shop.web", `{"node":` + node + `}`,
			"does not have the content"},
		{"an address with zone", "service.shop.web", endpoint(`"address":"fe80::1%eth0"`),
			"is not an address"},
		{"a mapped address", "service.shop.web", endpoint(`"address":"::ffff:10.245.1.5"`),
			"is not an address"},
		{"no address", "service.shop.web", endpoint(`"ready":true`), "is not an address"},
		{"a name for an address", "service.shop.web", endpoint(`"address":"a.example"`), "spec:"},
		{"a host name with a dot", "service.shop.web", endpoint(good + `,"hostname":"a.b"`),
			"is not a host name"},
		{"a node with a slash", "service.shop.web", endpoint(good + `,"node":"c/n"`),
			"is not the name of a node"},
		{"port 0", "service.shop.web", service(`{"ports":[{"protocol":"TCP"}]}`),
			"0 is not a port"},
		{"a port twice", "service.shop.web", service(`{"ports":[{"name":"a","protocol":"TCP",` +
			`"port":1},{"name":"a","protocol":"TCP","port":2}]}`), "two ports"},
		{"a hint with a space", "service.shop.web",
			`{"service":{"headless":true,"trafficDistribution":"a b"}}`,
			"trafficDistribution is malformed"},
		{"a protocol", "service.shop.web", service(`{"ports":[{"protocol":"ICMP","port":1}]}`),
			"not a protocol"},
		{"endpoints at the bound", "service.shop.web",
			service(`{"endpoints":[` + strings.TrimSuffix(many, ",") + `]}`), ""},
		{"one endpoint more", "service.shop.web",
			service(`{"endpoints":[` + many + `{` + good + `}]}`), "2001 endpoints"},
		{"too long", "head", `{"head":{"x":"` + strings.Repeat("x", record.MaxSpec) + `"}}`,
			"more than 262144"},
	} {
		t.Run(c.situation, func(t *testing.T) {
			r, err := record.Decode(c.name, []byte(c.spec))
			switch {
			case c.want == "" && (err != nil || r.Head == nil && r.Claim == nil &&
				r.Service == nil):
				t.Errorf("record %+v: %v", r, err)
			case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}

// What a cluster encodes, the other one decodes.
func TestEncode(t *testing.T) {
	k := record.Key{Namespace: "shop", Name: "web"}
	want := record.Service{V4: true, AffinitySeconds: 10, InternalLocal: true,
		TrafficDistribution: "PreferClose", Created: time.Unix(1000, 0).UTC(),
		Labels:      map[string]string{"team": "a"},
		Annotations: map[string]string{"example.com/note": "two\nlines"},
		Ports:       []record.Port{{Protocol: "TCP", Port: 80, AppProtocol: "kubernetes.io/h2c"}},
		Slices: []record.Slice{{Ports: []record.Port{{Protocol: "TCP", Port: 8080}},
			Endpoints: []record.Endpoint{{Address: netip.MustParseAddr("10.245.1.5"),
				Node:  "node-1",
				Ready: true, Serving: true}}}}}
	raw, err := record.Encode(record.NameOfService(k), record.Spec{Service: &want})
	errtest.Must(t, err)
	r, err := record.Decode(record.NameOfService(k), raw)
	errtest.Must(t, err)
	if got, err := json.Marshal(record.Spec{Service: r.Service}); err != nil || r.Key != k ||
		string(got) != string(raw) {
		t.Errorf("key %v, %s, want %s: %v", r.Key, got, raw, err)
	}

	want.Ports = nil
	if _, err := record.Encode(record.NameOfService(k), record.Spec{Service: &want}); err == nil {
		t.Error("a service without ports is encoded")
	}
}

// Any record is decoded within the bounds, or refused.
func FuzzDecode(f *testing.F) {
	f.Add("node.n-1", []byte(`{"node":`+node+`}`))
	f.Add("service.shop.web", []byte(endpoint(`"address":"10.245.1.5","hostname":"a"`)))
	f.Add("service.shop.web", []byte(`{"service":{"headless":true,"labels":{"a":"b"}}}`))
	f.Add("head", []byte(`{"head":{"podRanges":["10.245.0.0/16"]}}`))
	f.Fuzz(func(t *testing.T, name string, raw []byte) {
		r, err := record.Decode(name, raw)
		if err != nil {
			return
		}
		if r.Service != nil && (r.Service.Endpoints() > record.MaxEndpoints ||
			len(r.Service.Labels)+len(r.Service.Annotations) > record.MaxCopied) ||
			r.Claim != nil && (len(r.Addrs) == 0 || r.Node == "") {
			t.Errorf("%s: %+v", name, r)
		}
	})
}
