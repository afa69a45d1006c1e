package keeper

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/filetest"
	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/cluster"
	"github.com/kubeveil/kubeveil/pkg/config"
	"github.com/kubeveil/kubeveil/pkg/export"
	"github.com/kubeveil/kubeveil/pkg/feature"
	"github.com/kubeveil/kubeveil/pkg/pod"
	"github.com/kubeveil/kubeveil/pkg/telemetry"
)

// newFeature returns a Feature for site b, and a count of the turns that it requests.
func newFeature(t *testing.T, reach string) (f *Feature, turns *int) {
	turns = new(int)
	return NewFeature(FeatureOptions{Config: config.Config{Sites: []cluster.Site{{Name: "b",
		Reach: reach}}}, Paths: pod.Paths{PodDir: t.TempDir()}, Changed: func() { *turns++ },
		Log: slog.New(slog.DiscardHandler)}), turns
}

// attach writes the record of a pod in a namespace.
func attach(t *testing.T, f *Feature, namespace, addr string) (file string) {
	t.Helper()
	r := pod.Record{Network: "kubeveil", ContainerID: namespace + addr, IfName: "eth0", MTU: 1500,
		HostLink: pod.HostLink(namespace+addr, "eth0"), Addrs: nettest.Addrs(addr),
		Workload: pod.Workload{Namespace: namespace, Name: "web"}}
	text, err := json.Marshal(r)
	errtest.Must(t, err)
	file = filepath.Join(f.o.Paths.PodDir, r.HostLink+".json")
	filetest.Write(t, file, text, 0o600)
	return file
}

// Nothing is open before all objects are listed. Then the openings follow objects and pods.
func TestOpeningsFollowObjectsAndPods(t *testing.T) {
	f, turns := newFeature(t, "")
	attach(t, f, "shop", "10.0.0.1")
	name := export.Name{Namespace: "shop", Name: "web"}
	f.PutExport(export.Export{Name: name})
	f.PutSlice(export.Slice{Service: name, Name: "1", Addrs: nettest.Addrs("10.0.0.1", "10.0.0.2"),
		Ports: []export.Port{{Protocol: 6, Port: 80}}})
	if open := f.Opened(); len(open) > 0 || *turns > 0 {
		t.Errorf("before the lists: %v, %d turns", open, *turns)
	}
	// The guard enforces the openings that were passed before the lists.
	f.Listed()
	if f.InForce(); f.ender.known {
		t.Error("known connections are judged before the lists")
	}
	want := cluster.Opening{Site: "b", Protocol: 6,
		Endpoint: netip.MustParseAddrPort("10.0.0.1:80")}
	if open := f.Opened(); len(open) != 1 || open[0] != want || *turns != 1 {
		t.Errorf("open %v, %d turns", open, *turns)
	}
	if f.InForce(); !slices.Equal(f.ender.open, f.Opened()) {
		t.Errorf("known connections are judged by %v", f.ender.open)
	}
	s := telemetry.Status{Sites: []telemetry.Site{{Site: cluster.Site{Name: "b"}}}}
	f.Status(&s)
	if e := s.Sites[0].Exports; e == nil || *e != (telemetry.SiteExports{Listed: true, Open: 1,
		NoPods: 1}) || len(s.Problems) != 1 {
		t.Errorf("exports %+v, problems %q", e, s.Problems)
	}

	// Another pod of the namespace, and then one of another namespace with its address.
	file := attach(t, f, "shop", "10.0.0.2")
	f.KernelChanged(feature.KernelChange{Pods: true})
	if open := f.Opened(); len(open) != 2 || *turns != 2 {
		t.Errorf("open %v, %d turns", open, *turns)
	}
	errtest.Must(t, os.Remove(file))
	attach(t, f, "bank", "10.0.0.2")
	if open := f.Opened(); len(open) != 1 {
		t.Errorf("open %v", open)
	}
	f.DeleteExport(name)
	if open := f.Opened(); len(open) > 0 || *turns != 3 {
		t.Errorf("open %v, %d turns", open, *turns)
	}
	f.PutExport(export.Export{Name: name})
	f.DeleteSlice(name, "1")
	if open := f.Opened(); len(open) > 0 {
		t.Errorf("open %v", open)
	}
}

// A record that cannot be read closes its pod and is shown.
func TestUnreadableRecordIsShown(t *testing.T) {
	f, _ := newFeature(t, cluster.ReachExports)
	filetest.Write(t, attach(t, f, "shop", "10.0.0.1"), []byte("{"), 0o600)
	f.Listed()
	f.Opened()
	var s telemetry.Status
	f.Status(&s)
	if p := strings.Join(s.Problems, "\n"); !strings.Contains(p, "cannot be read are closed") {
		t.Errorf("problems %q", p)
	}
}

// Without a site that reaches exports only, nothing is read.
func TestOtherSitesReadNoExports(t *testing.T) {
	for _, reach := range []string{cluster.ReachNone, cluster.ReachAll} {
		f, turns := newFeature(t, reach)
		f.o.Source = failing{t}
		errtest.Must(t, f.Run(t.Context()))
		f.KernelChanged(feature.KernelChange{Pods: true})
		s := telemetry.Status{Sites: []telemetry.Site{{Site: cluster.Site{Name: "b", Reach: reach}}}}
		f.Status(&s)
		if s.Sites[0].Exports != nil || *turns > 0 {
			t.Errorf("exports %+v, %d turns", s.Sites[0].Exports, *turns)
		}
	}
}

// failing fails the test when it is read.
type failing struct{ t *testing.T }

func (f failing) RunExports(context.Context, export.Sink) error {
	f.t.Error("exports are read")
	return nil
}
