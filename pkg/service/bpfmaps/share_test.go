package bpfmaps

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/kubeveil/kubeveil/bpf"
	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/service/planner"
	"github.com/kubeveil/kubeveil/pkg/service/probe"
	"github.com/kubeveil/kubeveil/pkg/service/servicetest"
)

// A pod whose connections are refused in many network namespaces and cgroups of its own takes one
// share of the samples. What another pod is refused is sampled.
func TestShareOfRefusalsIsOfThePod(t *testing.T) {
	root := nettest.NewCgroup(t)
	tree := filepath.Dir(root)
	if part, err := probe.PartOfTree(tree); part || err != nil {
		nettest.Skip(t, nettest.NoKernelFeature, "the whole tree of cgroups is not there")
	}
	sub := func(path string) string {
		path = filepath.Join(root, path)
		errtest.Must(t, os.Mkdir(path, 0o755))
		t.Cleanup(func() { errtest.Must(t, os.Remove(path)) })
		return path
	}
	kubepods := sub("kubepods")
	pods := []string{sub("kubepods/class"), sub("kubepods/class/a"), sub("kubepods/class/a/own")}
	other := sub("kubepods/class/b")

	c := config(t)
	if c.PodCgroupLevel = probe.PodLevel(tree); c.PodCgroupLevel !=
		uint32(strings.Count(strings.TrimPrefix(kubepods, tree), "/"))+2 {
		t.Fatalf("pods are at level %d of %s", c.PodCgroupLevel, kubepods)
	}
	const to = "198.18.0.7:80"
	n := start(t, c, func(p *planner.Planner) {
		p.PutService(servicetest.Named("empty", "198.18.0.7"))
	})
	n.attach(t, root)
	limits, err := ebpf.LoadPinnedMap(filepath.Join(c.Dir, "drop_limits"), nil)
	errtest.Must(t, err)
	defer limits.Close()
	written := func() (count uint64) {
		for i := range bpf.ServiceCounts {
			var limit [3]uint64 // struct sample_limit
			errtest.Must(t, limits.Lookup(uint32(bpf.SampledService+i), &limit))
			count += limit[2]
		}
		return count
	}
	refused := func(h *hands) {
		t.Helper()
		if r := h.do(order{Do: "dial", Net: "tcp", To: to}); !r.Refused {
			t.Fatalf("%+v, want a refusal", r)
		}
	}

	var all []*hands
	for i := range 6 {
		all = append(all, newHands(t, pods[1+i%2]))
	}
	for range 20 {
		for _, h := range all {
			refused(h)
		}
	}
	taken := written()
	if taken == 0 || taken > 30 {
		t.Errorf("120 refusals of a pod in 6 network namespaces took %d samples", taken)
	}
	refused(newHands(t, other))
	if written() != taken+1 {
		t.Error("a refusal of another pod has no sample")
	}
}
