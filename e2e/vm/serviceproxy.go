package vm

import (
	"cmp"
	"errors"
	"io/fs"
	"os"

	"github.com/kubeveil/kubeveil/e2e/vm/hostnode"
	"github.com/kubeveil/kubeveil/pkg/config"
)

// translates reports whether Kubeveil translates services. Then the cluster never has a kube-proxy,
// nor its objects.
func (o ClusterConfig) translates() bool { return o.ServiceProxy == config.ServiceProxyEBPF }

// hostRouting returns the path of packets to pods, as a value of the configuration.
func (o ClusterConfig) hostRouting() string {
	return cmp.Or(o.HostRouting, config.HostRoutingKernel)
}

// checkCgroup is an error where the control plane's host has no tree of cgroups, in which its veild
// would translate for it.
func (c *Cluster) checkCgroup() error {
	_, err := os.Stat(c.Control.Path(hostnode.CgroupRoot + "/cgroup.procs"))
	if errors.Is(err, fs.ErrNotExist) {
		return errors.New("services by eBPF need cgroup v2, which is not mounted: mount -t " +
			"cgroup2 cgroup2 DIR")
	}
	return err
}

// servicesConfig is the configuration for a cluster whose services Kubeveil translates, for an API
// server. kube-proxy has no kubeconfig: veild uses the service kubernetes like any pod.
const servicesConfig = `apiVersion: v1
kind: ConfigMap
metadata: {name: kubeveil, namespace: kube-system}
data:
  veild.yaml: |
    kubeadmConfig: /etc/kubeveil/kubeadm.yaml
    services:
      apiServers: [%q]
      hostRouting: %s
      # The machines have 2 GiB.
      limits: {backendSlots: 65536}
`

// hostSetup returns how Kubeveil is installed on the control plane's host.
func (o ClusterConfig) hostSetup() hostnode.Setup {
	return hostnode.Setup{Translates: o.translates(), Enforces: o.enforces(),
		HostRouting: o.hostRouting(), ProxyMode: ProxyNFTables}
}
