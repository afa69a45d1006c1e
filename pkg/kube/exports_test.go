package kube

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/cluster"
	"github.com/kubeveil/kubeveil/pkg/export"
)

// exportSink keeps what a feed passes on.
type exportSink struct {
	mu      sync.Mutex
	exports map[string]export.Export
	slices  map[string]export.Slice // by service and name
	listed  bool
}

func (s *exportSink) do(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

func (s *exportSink) PutExport(e export.Export) { s.do(func() { s.exports[e.Name.String()] = e }) }
func (s *exportSink) DeleteExport(n export.Name) {
	s.do(func() { delete(s.exports, n.String()) })
}
func (s *exportSink) PutSlice(e export.Slice) {
	s.do(func() { s.slices[e.Service.String()+" "+e.Name] = e })
}
func (s *exportSink) DeleteSlice(n export.Name, name string) {
	s.do(func() { delete(s.slices, n.String()+" "+name) })
}
func (s *exportSink) Listed() { s.do(func() { s.listed = true }) }

func (s *exportSink) wait(t *testing.T, what string, so func() bool) {
	t.Helper()
	nettest.Until(t, 10*time.Second, what, func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return so()
	})
}

// startExports reads exports until the test ends.
func startExports(t *testing.T, f *fakeServer) (*Client, *exportSink) {
	t.Helper()
	c, err := newClient(ClientConfig{Node: "node-1"}, f.config())
	errtest.Must(t, err)
	quicken(c)
	sink := &exportSink{exports: map[string]export.Export{}, slices: map[string]export.Slice{}}
	ctx, stop := context.WithCancel(t.Context())
	var done sync.WaitGroup
	done.Go(func() { _ = c.RunExports(ctx, sink) })
	t.Cleanup(func() { stop(); done.Wait() })
	return c, sink
}

func exportObject(name string, annotations m) m {
	return m{"metadata": m{"namespace": "shop", "name": name, "annotations": annotations}}
}

// Exports come with their sites, and slices with the endpoints of this node.
func TestRunExports(t *testing.T) {
	f := newFakeServer(t)
	f.put(exportsPath, exportObject("web", nil))
	f.put(exportsPath, exportObject("db", m{cluster.SitesAnnotation: " c, b ,,b"}))
	f.put(exportsPath, exportObject("off", m{cluster.SitesAnnotation: ""}))
	f.put(exportsPath, exportObject("large", m{"x": strings.Repeat("x", 70<<10)}))
	f.put(allSlicesPath, sliceObject("web-1", "web", "198.18.1.1"))
	elsewhere := sliceObject("web-2", "web", "198.18.2.1")
	elsewhere["endpoints"].([]any)[0].(map[string]any)["nodeName"] = "node-2"
	f.put(allSlicesPath, elsewhere)
	c, sink := startExports(t, f)
	sink.wait(t, "listed", func() bool { return sink.listed })
	sink.do(func() {
		for name, want := range map[string]string{"web": "false []", "db": "true [b c]",
			"off": "true []", "large": "true []"} {
			e, found := sink.exports["shop/"+name]
			if got := fmt.Sprint(e.Named, " ", e.Sites); !found || got != want {
				t.Errorf("export %s: %t, %s, want %s", name, found, got, want)
			}
		}
		if got := fmt.Sprint(sink.slices); len(sink.exports) != 4 || got !=
			"map[shop/web web-1:{shop/web web-1 [198.18.1.1] [{6 8080}]}]" {
			t.Errorf("exports %v, slices %s", sink.exports, got)
		}
	})
	nettest.Until(t, 10*time.Second, "a problem", func() bool {
		p := c.Problems()
		return len(p) == 1 && strings.Contains(p[0], "so it is for no site")
	})

	f.remove(exportsPath, "web")
	f.put(allSlicesPath, sliceObject("web-2", "web", "198.18.1.2"))
	sink.wait(t, "changed", func() bool { return len(sink.exports) == 3 && len(sink.slices) == 2 })
}

// A cluster without the kind exports nothing and reports no problem. The kind is requested again.
func TestExportsOfAClusterWithoutTheKind(t *testing.T) {
	f := newFakeServer(t)
	f.setRefuse("GET "+exportsPath, http.StatusNotFound)
	f.put(allSlicesPath, sliceObject("web-1", "web", "198.18.1.1"))
	c, sink := startExports(t, f)
	sink.wait(t, "read", func() bool { return len(sink.slices) == 1 })
	sink.do(func() {
		if p := c.Problems(); len(p) > 0 || sink.listed {
			t.Errorf("listed %t, problems %q", sink.listed, p)
		}
	})
	f.put(exportsPath, exportObject("web", nil))
	f.setRefuse("GET "+exportsPath, 0)
	sink.wait(t, "served", func() bool { return sink.listed && len(sink.exports) == 1 })
}

// A namespace with too many exports or endpoints loses its last ones, and no other does.
func TestExportsOfANamespaceAreBounded(t *testing.T) {
	f := newFakeServer(t)
	many := make([]string, 0, 64)
	for i := range 64 {
		many = append(many, fmt.Sprint("s", i))
	}
	for i := range 70 {
		f.put(exportsPath, exportObject(fmt.Sprintf("web-%02d", i),
			m{cluster.SitesAnnotation: strings.Join(many, ",")}))
	}
	other := exportObject("last", nil)
	other["metadata"].(m)["namespace"] = "other"
	f.put(exportsPath, other)
	c, sink := startExports(t, f)
	sink.wait(t, "listed", func() bool { return sink.listed })
	sink.do(func() {
		if _, found := sink.exports["other/last"]; len(sink.exports) != 65 || !found {
			t.Errorf("%d exports, the other namespace's: %t", len(sink.exports), found)
		}
	})
	nettest.Until(t, 10*time.Second, "a problem", func() bool {
		p := c.Problems()
		return len(p) == 1 && strings.Contains(p[0], `from "web-64" on by name, 6 now`)
	})
}
