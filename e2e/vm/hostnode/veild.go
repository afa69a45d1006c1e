package hostnode

import (
	"context"
	"fmt"
	"net/netip"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubeveil/kubeveil/pkg/config"
)

// CgroupRoot is the cgroup tree of the control plane's host. It is a part of the machine's tree, so
// its veild needs the path.
const CgroupRoot = "/sys/fs/cgroup"

// VeildArguments are those that a DaemonSet's pod of veild on the control plane's host would have.
func (o Setup) VeildArguments() []string {
	// Userspace, so that every cluster of the lab has nodes of both kinds.
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

// kubeconfig writes it for the account of a program.
func (h *Host) kubeconfig(ctx context.Context, name, path string) error {
	text, err := h.kubeconfigText(ctx)
	if err != nil {
		return err
	}
	return h.WriteFile(path, []byte(strings.ReplaceAll(text, accountDir, "/run/lab/"+name)))
}
