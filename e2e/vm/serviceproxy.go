package vm

import (
	"cmp"
	"errors"
	"io/fs"
	"os"

	"github.com/kubeveil/kubeveil/e2e/vm/hostnode"
	"github.com/kubeveil/kubeveil/pkg/config"
)

// translates reports whether Kubeveil translates services. If so, neither kube-proxy nor its
// objects are ever installed.
func (o ClusterConfig) translates() bool { return o.ServiceProxy == config.ServiceProxyEBPF }

// hostRouting returns the path of packets to pods as a value of veild's configuration.
func (o ClusterConfig) hostRouting() string {
	return cmp.Or(o.HostRouting, config.HostRoutingKernel)
}

// checkCgroup returns an error if the control plane's host lacks a cgroup tree. veild attaches to
// this tree to translate services for the host.
func (c *Cluster) checkCgroup() error {
	_, err := os.Stat(c.Control.Path(hostnode.CgroupRoot + "/cgroup.procs"))
	if errors.Is(err, fs.ErrNotExist) {
		return errors.New("services by eBPF need cgroup v2, which is not mounted: mount -t " +
			"cgroup2 cgroup2 DIR")
	}
	return err
}

// hostSetup returns the part of the setup of the control plane's host that follows from the
// options.
func (o ClusterConfig) hostSetup() hostnode.Setup {
	return hostnode.Setup{Translates: o.translates(), Enforces: o.enforces(),
		HostRouting: o.hostRouting(), ProxyMode: ProxyNFTables}
}
