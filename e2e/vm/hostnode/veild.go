package hostnode

import (
	"context"
	"fmt"
	"net/netip"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubeveil/kubeveil/pkg/config"
)

// CgroupRoot is the root of the cgroup tree of the control plane's host. This tree is a part of the
// machine's tree, so veild on the host needs its path.
const CgroupRoot = "/sys/fs/cgroup"

// VeildArguments returns the arguments that veild would have in a pod of its DaemonSet on the
// control plane's host.
func (o Setup) VeildArguments() []string {
	// The tunnel is in userspace, so that every cluster of the lab has nodes with both kinds of
	// tunnel.
	args := []string{"--config=" + veildConfig, "--node=" + Name,
		"--tunnel-mode=" + config.ModeUserspace}
	if o.Translates {
		args = append(args, "--service-proxy="+config.ServiceProxyEBPF,
			"--service-cgroup="+CgroupRoot, "--kubeconfig="+VeildKubeconfig,
			"--host-routing="+o.HostRouting)
	}
	if o.Enforces {
		args = append(args, "--policy="+config.PolicyKubernetes)
	}
	return args
}

// serviceKubeconfig is equivalent to the configuration that a pod derives from its service account
// and from the environment that the kubelet sets. It names the API server by the address of the
// service kubernetes.
const serviceKubeconfig = `apiVersion: v1
kind: Config
clusters: [{name: cluster, cluster: {server: "https://%s", certificate-authority: ` + accountDir + `/ca.crt}}]
users: [{name: account, user: {tokenFile: ` + accountDir + `/token}}]
contexts: [{name: service, context: {cluster: cluster, user: account}}]
current-context: service
`

// kubeconfigText returns the kubeconfig of the programs of the host. It names the account's files
// by their paths in a pod. If the cluster has a kube-proxy, the text is the kubeconfig of
// kube-proxy. Otherwise it uses the service kubernetes.
func (h *Host) kubeconfigText(ctx context.Context) (string, error) {
	if !h.o.Translates {
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

// kubeconfig writes kubeconfigText to a file, with the paths of the account's files of a program.
func (h *Host) kubeconfig(ctx context.Context, name, path string) error {
	text, err := h.kubeconfigText(ctx)
	if err != nil {
		return err
	}
	return h.WriteFile(path, []byte(strings.ReplaceAll(text, accountDir, "/run/lab/"+name)))
}
