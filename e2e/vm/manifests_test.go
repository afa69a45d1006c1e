package vm

import (
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kubeveil/kubeveil/e2e/lab"
	"github.com/kubeveil/kubeveil/e2e/lab/buildtree"
	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/pkg/config"
)

func TestPoliciesOfAnotherKindAreRefused(t *testing.T) {
	if _, err := New(t.Context(), ClusterConfig{Policy: "calico"}); err == nil ||
		!strings.Contains(err.Error(), `policies of "calico": write none or kubernetes`) {
		t.Errorf("error %v", err)
	}
}

// The machines get the components from the manifests. The control plane's host gets them from its
// arguments.
func TestComponentsOfTheOptions(t *testing.T) {
	root, err := buildtree.Root()
	errtest.Must(t, err)
	base := filepath.Join(root, "manifests")

	for name, tt := range map[string]struct {
		opts       ClusterConfig
		components []string
		patches    int
	}{
		"none":          {ClusterConfig{}, nil, 0},
		"none, by name": {ClusterConfig{Policy: config.PolicyNone}, nil, 0},
		"policies":      {ClusterConfig{Policy: config.PolicyKubernetes}, []string{"policy"}, 0},
		"services":      {ClusterConfig{ServiceProxy: config.ServiceProxyEBPF}, []string{"services"}, 1},
		"policies beside": {ClusterConfig{ServiceProxy: config.ServiceProxyEBPF,
			Policy: config.PolicyKubernetes}, []string{"services", "policy"}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			args := tt.opts.hostSetup().VeildArguments()
			if got, want := slices.Contains(args, "--policy=kubernetes"),
				slices.Contains(tt.components, "policy"); got != want {
				t.Errorf("the control plane's host enforces policies: %v, want %v", got, want)
			}

			if len(tt.components) == 0 {
				c := &Cluster{root: root, opts: tt.opts}
				if dir, err := c.manifests(); err != nil || dir != base {
					t.Errorf("manifests %s, %v", dir, err)
				}
				return
			}

			dir := filepath.Join(t.TempDir(), "manifests")
			errtest.Must(t, tt.opts.writeManifests(dir, base,
				netip.MustParseAddrPort("198.18.0.2:6443"), place{}, lab.Dual))
			var k struct {
				Components []string
				Patches    []struct{ Path string }
			}
			read(t, filepath.Join(dir, "kustomization.yaml"), &k)
			var got []string
			for _, c := range k.Components {
				got = append(got, filepath.Base(c))
			}
			if !slices.Equal(got, tt.components) || len(k.Patches) != tt.patches {
				t.Errorf("components %q, %d patches, want %q, %d", got, len(k.Patches),
					tt.components, tt.patches)
			}
		})
	}
}
