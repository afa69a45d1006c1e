package vm

import (
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/kubeveil/kubeveil/e2e/lab"
	"github.com/kubeveil/kubeveil/e2e/lab/buildtree"
	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/pkg/config"
	"github.com/kubeveil/kubeveil/pkg/site/record"
)

// veild accepts the configurations of both clusters. Each has the ranges of the other as a site, and
// no range of one overlaps a range of the other.
func TestConfigurationsOfAPair(t *testing.T) {
	root, err := buildtree.Root()
	errtest.Must(t, err)
	for name, opts := range map[string]ClusterConfig{
		"kube-proxy": {Nodes: 2}, "services": {Nodes: 1, ServiceProxy: config.ServiceProxyEBPF},
	} {
		t.Run(name, func(t *testing.T) {
			var both []config.Config
			for _, at := range []place{{name: "a"}, {name: "b", second: true}} {
				dir := filepath.Join(t.TempDir(), "manifests")
				api := netip.AddrPortFrom(netip.MustParseAddr("198.18.0.2"), lab.APIPort)
				errtest.Must(t, opts.writeManifests(dir, filepath.Join(root, "manifests"), api, at,
					lab.Dual))
				var object corev1.ConfigMap
				read(t, filepath.Join(dir, "config.yaml"), &object)
				c, err := config.Parse("n", []byte(object.Data["veild.yaml"]),
					fmt.Appendf(nil, "apiVersion: kubeadm.k8s.io/v1beta4\nkind: "+
						"ClusterConfiguration\nnetworking: {podSubnet: \"%s\", serviceSubnet: "+
						"198.18.128.0/20}\n", commas(at.podRanges(lab.Dual))))
				errtest.Must(t, err)
				both = append(both, c)
			}

			for i, c := range both {
				other := both[1-i]
				if len(c.Sites) != 1 || !c.Sites[0].ExportsOnly() ||
					!slices.Equal(c.Sites[0].NodeRanges, other.NodeRanges) ||
					!slices.Equal(c.Sites[0].PodRanges, other.ClusterRanges) ||
					len(c.NodeRanges) != 2+2*opts.Nodes {
					t.Errorf("cluster %d: %+v", i, c)
				}
			}
			all := func(c config.Config) []netip.Prefix {
				return slices.Concat(c.ClusterRanges, c.NodeRanges)
			}
			if a, b, overlap := record.Overlapping(all(both[0]), all(both[1])); overlap {
				t.Errorf("%s of a overlaps %s of b", a, b)
			}
		})
	}
}

// The zone of imported services is in the configuration that kubeadm writes for CoreDNS, once.
func TestDNSOfAPair(t *testing.T) {
	const before = ".:53 {\n    kubernetes cluster.local in-addr.arpa ip6.arpa {\n       pods " +
		"insecure\n    }\n}\n"
	got, err := withImports(before)
	errtest.Must(t, err)
	if !strings.Contains(got, "kubernetes cluster.local clusterset.local in-addr.arpa ip6.arpa {\n"+
		"       multicluster clusterset.local\n       pods insecure\n") {
		t.Errorf("Corefile %s", got)
	}
	if _, err := withImports(".:53 {\n}\n"); err == nil {
		t.Error("a Corefile without the zone of the cluster is accepted")
	}
}
