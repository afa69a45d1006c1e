package vm

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/kubeveil/kubeveil/e2e/lab"
	"github.com/kubeveil/kubeveil/e2e/lab/buildtree"
	"github.com/kubeveil/kubeveil/e2e/lab/labhost"
	"github.com/kubeveil/kubeveil/pkg/leak"
)

// Pair is two clusters on one network that are linked: each is a site of the other, and imports its
// exports into all namespaces. A made the network, and its oracle watches both. A second API server
// (SecondAPI) is only possible in A.
type Pair struct{ A, B *Cluster }

// PairContexts are the contexts of Pair.WriteKubeconfig, with a comma between them.
const PairContexts = "a,b"

// NewPair makes two clusters with the same options and links them as an administrator would, by
// `veilctl site link`. Their names as sites are a and b. After an error only the artefacts are left.
func NewPair(ctx context.Context, opts ClusterConfig) (*Pair, error) {
	dir := opts.Dir
	if dir == "" {
		root, err := buildtree.Root()
		if err != nil {
			return nil, err
		}
		if dir, err = labhost.NewRun(filepath.Join(root, "out/vm")); err != nil {
			return nil, fmt.Errorf("make two clusters: %w", err)
		}
	}
	opts.Nodes = cmp.Or(opts.Nodes, 1)

	p := &Pair{}
	if err := p.make(ctx, opts, dir); err != nil {
		_, end := p.Close()
		return nil, errors.Join(fmt.Errorf("make two clusters: %w (logs in %s)", err, dir), end)
	}
	return p, nil
}

// make makes the clusters, and links them in both directions.
func (p *Pair) make(ctx context.Context, opts ClusterConfig, dir string) (err error) {
	opts.Dir = filepath.Join(dir, "a")
	if p.A, err = newCluster(ctx, opts, place{name: "a"}); err != nil {
		return err
	}
	opts.Dir = filepath.Join(dir, "b")
	if p.B, err = newCluster(ctx, opts, place{name: "b", second: true, first: p.A}); err != nil {
		return err
	}

	for _, way := range [][2]*Cluster{{p.A, p.B}, {p.B, p.A}} {
		if err := way[0].link(ctx, way[1]); err != nil {
			return fmt.Errorf("link cluster %s with %s: %w", way[0].place.name, way[1].place.name,
				err)
		}
	}
	return p.waitLinked(ctx)
}

// Close removes both clusters, except for their artefacts, and returns the result of the oracle.
func (p *Pair) Close() (leak.Result, error) {
	var errs []error
	if p.B != nil {
		_, err := p.B.Close()
		errs = append(errs, err)
	}
	if p.A == nil {
		return leak.Result{}, errors.Join(errs...)
	}
	result, err := p.A.Close()
	return result, errors.Join(append(errs, err)...)
}

// WriteKubeconfig writes a kubeconfig of both administrators that works outside of the lab's
// namespaces. Its contexts are a, which is the current one, and b.
func (p *Pair) WriteKubeconfig(path string) error {
	both := clientcmdapi.NewConfig()
	for _, c := range []*Cluster{p.A, p.B} {
		one, err := clientcmd.LoadFromFile(c.Kubeconfig())
		if err != nil {
			return err
		}
		name, now := c.place.name, one.Contexts[one.CurrentContext]
		if now == nil {
			return fmt.Errorf("%s has no current context", c.Kubeconfig())
		}
		both.Clusters[name], both.AuthInfos[name] = one.Clusters[now.Cluster],
			one.AuthInfos[now.AuthInfo]
		both.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: name}
	}
	both.CurrentContext = p.A.place.name
	return clientcmd.WriteToFile(*both, path)
}

// otherConfig is the path of the kubeconfig of the other cluster's administrator on the control
// plane's host.
const otherConfig = "/run/lab/other.conf"

// SiteCommand returns the command line of a verb of `veilctl site` that runs on the host of c's
// control plane, with the kubeconfigs of the administrators of c and other.
func (c *Cluster) SiteCommand(other *Cluster, args ...string) ([]string, error) {
	text, err := os.ReadFile(other.Control.Path(superAdmin))
	if err != nil {
		return nil, err
	}
	line := append([]string{c.program("veilctl"), "site"}, args...)
	return append(line, "--kubeconfig="+superAdmin, "--from="+otherConfig),
		c.host.WriteFile(otherConfig, text)
}

// link lets c read the exports of other. It names the machines, because veilctl might choose the
// node of the control plane, which runs no kubelet, while a machine still has the taint of a node
// that is not Ready.
func (c *Cluster) link(ctx context.Context, other *Cluster) error {
	line, err := c.SiteCommand(other, "link", "--timeout="+readyPatience.String(),
		"--nodes="+c.Machines[0].Name+","+other.Machines[0].Name)
	if err != nil {
		return err
	}
	out, err := c.Control.Exec(ctx, line[0], line[1:]...)
	if err != nil {
		return err
	}
	c.log.Info("linked", "cluster", c.place.name, "result", string(out))
	return nil
}

// waitLinked waits until each cluster has read the other.
func (p *Pair) waitLinked(ctx context.Context) error {
	for _, c := range []*Cluster{p.A, p.B} {
		err := lab.Until(ctx, readyPatience, func() error {
			out, err := c.Kubectl(ctx, "get", "sitelinks", "--output="+
				`jsonpath={.items[*].status.conditions[?(@.type=="Ready")]}`)
			if err == nil && !strings.Contains(string(out), `"status":"True"`) {
				err = fmt.Errorf("condition Ready is %q", out)
			}
			return err
		})
		if err != nil {
			return fmt.Errorf("link of cluster %s: %w", c.place.name, err)
		}
		c.step("linked", "cluster", c.place.name)
	}
	return nil
}
