package vm

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"

	"github.com/kubeveil/kubeveil/e2e/lab"
	"github.com/kubeveil/kubeveil/e2e/lab/apiobject"
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
	var err error
	if c.place.linked() {
		err = c.opts.writeSiteManifests(dir, base, api, c.place, c.Lab.Family())
	} else {
		err = c.opts.writeManifests(dir, base, api)
	}
	if err != nil {
		return "", fmt.Errorf("manifests with components: %w", err)
	}
	return dir, nil
}

// writeManifests writes to dir an overlay of base with the components. api is the API server's
// address.
func (o ClusterConfig) writeManifests(dir, base string, api netip.AddrPort) error {
	if !o.translates() {
		return apiobject.WriteOverlay(dir, base, o.components())
	}
	const file = "config.yaml"
	if err := apiobject.WriteOverlay(dir, base, o.components(), file); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, file),
		fmt.Appendf(nil, servicesConfig, api, o.hostRouting()), 0o644)
}
