package vm

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/kubeveil/kubeveil/e2e/lab"
	"github.com/kubeveil/kubeveil/e2e/lab/apiobject"
	"github.com/kubeveil/kubeveil/e2e/vm/hostnode"
	"github.com/kubeveil/kubeveil/pkg/cluster"
	"github.com/kubeveil/kubeveil/pkg/config"
)

// enforces reports whether Kubeveil enforces NetworkPolicy.
func (o ClusterConfig) enforces() bool { return o.Policy == config.PolicyKubernetes }

// components returns the folders of manifests/components that are installed on the cluster.
func (o ClusterConfig) components() []string {
	var folders []string
	if o.translates() {
		folders = append(folders, "services")
	}
	if o.enforces() {
		folders = append(folders, "policy")
	}
	return folders
}

// manifests returns the folder that is applied to install Kubeveil. If the options need components,
// it is a new overlay like one that a user would write. Otherwise it is the repository's folder.
func (c *Cluster) manifests() (string, error) {
	base := filepath.Join(c.root, "manifests")
	if len(c.opts.components()) == 0 && !c.place.linked() {
		return base, nil
	}
	dir := c.file("manifests")
	api := netip.AddrPortFrom(c.apiAddr(), lab.APIPort)
	if err := c.opts.writeManifests(dir, base, api, c.place, c.Lab.Family()); err != nil {
		return "", fmt.Errorf("manifests with components: %w", err)
	}
	return dir, nil
}

// writeManifests writes to dir an overlay of base with the components. api is the API server's
// address. at is the place of a cluster of a Pair.
func (o ClusterConfig) writeManifests(dir, base string, api netip.AddrPort, at place,
	f lab.Family) error {
	components := o.components()
	settings := map[string]any{"kubeadmConfig": "/etc/kubeveil/kubeadm.yaml"}
	if at.linked() {
		components = append(components, "sites")
		settings["nodeRanges"] = at.nodeRanges(f, o.Nodes)
		settings["sites"] = []cluster.Site{at.site(f, o.Nodes)}
	}
	switch {
	case o.translates():
		// Without a kubeconfig, veild uses the service kubernetes like other pods.
		settings["services"] = map[string]any{"apiServers": []netip.AddrPort{api},
			"hostRouting": o.hostRouting(),
			"limits":      map[string]any{"backendSlots": 65536}} // the machines have 2 GiB
	case at.linked():
		settings["source"] = map[string]any{"kind": "kubernetes",
			"kubeconfig": hostnode.VeildKubeconfig}
	default:
		return apiobject.WriteOverlay(dir, base, components)
	}

	text, err := yaml.Marshal(settings)
	if err != nil {
		return err
	}
	object, err := yaml.Marshal(corev1.ConfigMap{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"},
		ObjectMeta: metav1.ObjectMeta{Name: "kubeveil", Namespace: metav1.NamespaceSystem},
		Data:       map[string]string{"veild.yaml": string(text)}})
	if err != nil {
		return err
	}
	const file = "config.yaml"
	if err := apiobject.WriteOverlay(dir, base, components, file); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, file), object, 0o644)
}
