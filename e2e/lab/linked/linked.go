// Package linked links clusters of the lab as administrators do, and makes two linked clusters.
//
// Start reading at Link and Clusters.
package linked

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/kubeveil/kubeveil/e2e/lab"
	"github.com/kubeveil/kubeveil/e2e/lab/addressplan"
	"github.com/kubeveil/kubeveil/pkg/cluster"
)

// Cluster is a cluster with a node, and its name.
type Cluster struct {
	*lab.Lab
	Name string
	// Site is the cluster's veil-site, which Link starts.
	Site *lab.Process
}

// Settings returns settings of veild in a cluster with the addresses own. The linked cluster has
// the addresses other and is the site called name. Its services are imported into namespaces.
func Settings(own, other addressplan.Part, name string, namespaces ...string) map[string]any {
	return map[string]any{"clusterRanges": own.Pods, "nodeRanges": own.Nodes,
		"sites": []cluster.Site{{Name: name, PodRanges: other.Pods, NodeRanges: other.Nodes,
			Imports: namespaces}}}
}

// Link links two clusters whose settings have each other as a site, by veilctl, and starts a
// veil-site on the first node of each. Both must have the component for sites.
func Link(ctx context.Context, clusters [2]*Cluster) error {
	var admins [2]string
	for i, c := range clusters {
		text, err := os.ReadFile(c.Nodes()[0].Path(lab.ConfigFile))
		if err != nil {
			return err
		}
		if _, err := c.Control.Client.CoreV1().ConfigMaps(metav1.NamespaceSystem).Create(ctx,
			&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "kubeveil"},
				Data: map[string]string{"veild.yaml": string(text)}},
			metav1.CreateOptions{}); err != nil {
			return err
		}
		if admins[i], err = c.Control.WriteKubeconfig(ctx, "", ""); err != nil {
			return err
		}
	}

	var both errgroup.Group
	for i, c := range clusters {
		both.Go(func() error {
			// The check of the path starts pods, for which these nodes have no kubelet.
			_, err := c.Nodes()[0].Exec(ctx, c.Program("veilctl"), "site", "link", "--skip-path",
				"--kubeconfig", admins[i], "--from", admins[1-i])
			if err != nil {
				return err
			}
			return c.startSite(ctx)
		})
	}
	if err := both.Wait(); err != nil {
		return fmt.Errorf("link clusters: %w", err)
	}
	return nil
}

// startSite starts a veil-site on the first node, with the account and the Secret of an
// installation.
func (c *Cluster) startSite(ctx context.Context) error {
	account, err := c.Control.WriteKubeconfig(ctx, metav1.NamespaceSystem, "veil-site")
	if err != nil {
		return err
	}
	text, err := os.ReadFile(c.Nodes()[0].Path(lab.ConfigFile))
	if err != nil {
		return err
	}
	var settings map[string]any
	if err := yaml.Unmarshal(text, &settings); err != nil {
		return err
	}
	settings["source"] = map[string]any{"kind": "kubernetes", "kubeconfig": account}
	if text, err = yaml.Marshal(settings); err != nil {
		return err
	}
	config, folder := filepath.Join(c.Dir, "veil-site.yaml"), filepath.Join(c.Dir, "sites")
	if err := errors.Join(os.WriteFile(config, text, 0o600), os.Mkdir(folder, 0o700)); err != nil {
		return err
	}

	secret, err := c.Control.Client.CoreV1().Secrets(metav1.NamespaceSystem).Get(ctx, "veil-site",
		metav1.GetOptions{})
	if err != nil {
		return err
	}
	for site, credentials := range secret.Data {
		if err := os.WriteFile(filepath.Join(folder, site), credentials, 0o600); err != nil {
			return err
		}
	}
	c.Site, err = c.Nodes()[0].Start(ctx, c.Program("veil-site"), "--config="+config,
		"--credentials="+folder, "--cluster-name="+c.Name)
	return err
}
