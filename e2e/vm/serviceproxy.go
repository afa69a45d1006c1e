package vm

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubeveil/kubeveil/pkg/config"
)

// translates reports whether Kubeveil translates services. Then the cluster never has a kube-proxy,
// nor its objects.
func (o Options) translates() bool { return o.ServiceProxy == config.ServiceProxyEBPF }

// hostRouting returns the path of packets to pods, as a value of the configuration.
func (o Options) hostRouting() string {
	return cmp.Or(o.HostRouting, config.HostRoutingKernel)
}

// cgroupRoot is the cgroup tree of the control plane's host. It is a part of the machine's tree, so
// its veild needs the path.
const cgroupRoot = "/sys/fs/cgroup"

// checkCgroup is an error where the control plane's host has no tree of cgroups, in which its veild
// would translate for it.
func (c *Cluster) checkCgroup() error {
	_, err := os.Stat(c.Control.Path(cgroupRoot + "/cgroup.procs"))
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

// veildArguments are those that a DaemonSet's pod of veild on the control plane's host would have.
func (h *hostNode) veildArguments() []string {
	// Userspace, so that every cluster of the lab has nodes of both kinds.
	args := []string{"--config=" + veildConfig, "--node=" + hostName,
		"--tunnel-mode=" + config.ModeUserspace}
	if h.cluster.opts.translates() {
		args = append(args, "--service-proxy="+config.ServiceProxyEBPF,
			"--service-cgroup="+cgroupRoot, "--kubeconfig="+veildKubeconfig,
			"--host-routing="+h.cluster.opts.hostRouting())
	}
	if h.cluster.opts.enforces() {
		args = append(args, "--policy="+config.PolicyKubernetes)
	}
	return args
}

// serviceKubeconfig is the kubeconfig that a pod derives from its service account and from the
// environment that the kubelet sets: the API server by its service.
const serviceKubeconfig = `apiVersion: v1
kind: Config
clusters: [{name: cluster, cluster: {server: "https://%s", certificate-authority: ` + accountDir + `/ca.crt}}]
users: [{name: account, user: {tokenFile: ` + accountDir + `/token}}]
contexts: [{name: service, context: {cluster: cluster, user: account}}]
current-context: service
`

// kubeconfigText returns the kubeconfig of the programs of the host, with the account's files where
// a pod has them. It is the kubeconfig of kube-proxy, or without kube-proxy one that uses the
// service kubernetes.
func (h *hostNode) kubeconfigText(ctx context.Context) (string, error) {
	if !h.cluster.opts.translates() {
		m, err := h.client.CoreV1().ConfigMaps(metav1.NamespaceSystem).Get(ctx, "kube-proxy",
			metav1.GetOptions{})
		if err != nil {
			return "", err
		}
		return m.Data["kubeconfig.conf"], nil
	}
	s, err := h.client.CoreV1().Services(metav1.NamespaceDefault).Get(ctx, "kubernetes",
		metav1.GetOptions{})
	if err != nil {
		return "", err
	}
	addr, err := netip.ParseAddr(s.Spec.ClusterIP)
	if err != nil || len(s.Spec.Ports) == 0 {
		return "", fmt.Errorf("the service kubernetes has the address %q and %d ports",
			s.Spec.ClusterIP, len(s.Spec.Ports))
	}
	return fmt.Sprintf(serviceKubeconfig,
		netip.AddrPortFrom(addr, uint16(s.Spec.Ports[0].Port))), nil
}

// kubeconfig writes it for the account of a program.
func (h *hostNode) kubeconfig(ctx context.Context, name, path string) error {
	text, err := h.kubeconfigText(ctx)
	if err != nil {
		return err
	}
	return h.writeFile(path, []byte(strings.ReplaceAll(text, accountDir, "/run/lab/"+name)))
}
