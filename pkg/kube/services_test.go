package kube

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/kube/object"
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
	c, sink := startServices(t, f, service.DefaultLimits)

	sink.wait(t, "listed", func() bool {
		return sink.listed == 1 && len(sink.services) == 1 && len(sink.slices) == 1
	})
	f.put(allSlicesPath, sliceObject("web-1", "web", "198.18.1.2"))
	sink.wait(t, "changed", func() bool {
		s := sink.slices["shop/web web-1"]
		return s.Endpoints.Len() == 1 && s.Endpoints.At(0).Addr.String() == "198.18.1.2" &&
			s.Endpoints.At(0).Ready
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

	_, sink := startSink(t, f, func(ctx context.Context, c *Client, sink *tellTale) error {
		return c.RunAPIServers(ctx, sink)
	})
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
	for _, k := range []object.Kind{object.APIServerService, object.APIServerSlice} {
		if got := k.Select(metav1.ListOptions{}).FieldSelector; got !=
			"metadata.name=kubernetes" {
			t.Errorf("%s: selector %q", k.What, got)
		}
	}
}
