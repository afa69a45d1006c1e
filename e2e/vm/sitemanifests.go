package vm

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/kubeveil/kubeveil/e2e/lab"
	"github.com/kubeveil/kubeveil/pkg/cluster"
)

// linked reports whether the cluster is one of a Pair.
func (p place) linked() bool { return p.name != "" }

// site returns the other cluster of a Pair as a site in the configuration of this one.
func (p place) site(f lab.Family, machines int) cluster.Site {
	other := place{name: "b", second: true}
	if p.second {
		other = place{name: "a"}
	}
	return cluster.Site{Name: other.name, PodRanges: other.podRanges(f),
		NodeRanges: other.nodeRanges(f, machines), Reach: cluster.ReachExports,
		Imports: []string{cluster.AllNamespaces}}
}

// defineSites installs the definitions of the kinds for links between clusters.
func (c *Cluster) defineSites(ctx context.Context) error {
	_, err := c.Kubectl(ctx, "apply", "-k", filepath.Join(c.root, "manifests/components/sites/crd"))
	return err
}

// resolveImports lets the cluster's DNS answer for imported services, as docs/how-to/sites.md
// describes.
func (c *Cluster) resolveImports(ctx context.Context) error {
	text, err := c.Kubectl(ctx, "--namespace=kube-system", "get", "configmap", "coredns",
		"--output=jsonpath={.data.Corefile}")
	if err != nil {
		return fmt.Errorf("read the configuration of DNS: %w", err)
	}
	now, err := withImports(string(text))
	if err != nil {
		return err
	}
	patch, err := yaml.Marshal(map[string]any{"data": map[string]string{"Corefile": now}})
	if err != nil {
		return err
	}
	path := c.file("coredns.yaml")
	if err := os.WriteFile(path, patch, 0o644); err != nil {
		return err
	}
	_, err = c.Kubectl(ctx, "--namespace=kube-system", "patch", "configmap", "coredns",
		"--patch-file="+path)
	return err
}

// withImports returns a Corefile with the zone of imported services.
func withImports(corefile string) (string, error) {
	const local, zone = "kubernetes cluster.local ", "clusterset.local"
	before, after, found := strings.Cut(corefile, local)
	line, rest, more := strings.Cut(after, "\n")
	if !found || !more {
		return "", fmt.Errorf("the configuration of DNS has no %q: %s", local, corefile)
	}
	return before + local + zone + " " + line + "\n       multicluster " + zone + "\n" + rest, nil
}
