package hostnode

import (
	"context"
	"fmt"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Files of the control plane's host.
const (
	hostConfig  = "/etc/kubeveil/"
	veildConfig = hostConfig + "veild.yaml"
	// VeildKubeconfig is the path of veild's kubeconfig, as in the configuration of the manifests.
	VeildKubeconfig = hostConfig + "kubeconfig"
	proxyConfig     = "/run/lab/kube-proxy/kubeconfig"
	// accountDir is the folder of the service account's files in a pod. The kubeconfig of kubeadm's
	// kube-proxy names it.
	accountDir = "/var/run/secrets/kubernetes.io/serviceaccount"
)

// token is the service account token of a program of the host.
type token struct {
	account types.UID
	renew   time.Time
}

// tokenLife is the lifetime in seconds that a kubelet requests. It renews a token after four fifths
// of the lifetime.
const tokenLife = 3607

// mount writes the files that the pods of a program would have mounted.
func (h *Host) mount(ctx context.Context, name string) error {
	switch name {
	case "kube-proxy":
		if err := h.account(ctx, name); err != nil {
			return err
		}
		return h.kubeconfig(ctx, name, proxyConfig)
	case "veild":
		if err := h.account(ctx, name); err != nil {
			return err
		}
		if err := h.configFile(ctx, "kubeveil", "veild.yaml", veildConfig); err != nil {
			return err
		}
		if err := h.configFile(ctx, "kubeadm-config", "ClusterConfiguration",
			hostConfig+"kubeadm.yaml"); err != nil {
			return err
		}
		return h.kubeconfig(ctx, name, VeildKubeconfig)
	}
	return nil
}

// configFile writes the value of a key of a ConfigMap in kube-system to a file.
func (h *Host) configFile(ctx context.Context, configMap, key, path string) error {
	m, err := h.client.CoreV1().ConfigMaps(metav1.NamespaceSystem).Get(ctx, configMap,
		metav1.GetOptions{})
	if err != nil {
		return err
	}
	return h.WriteFile(path, []byte(m.Data[key]))
}

// account writes a token of the service account of that name, and the API server's certificate
// authority. The token is bound to the Node. account renews the token as a kubelet would.
func (h *Host) account(ctx context.Context, name string) error {
	accounts := h.client.CoreV1().ServiceAccounts(metav1.NamespaceSystem)
	account, err := accounts.Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	if t := h.tokens[name]; t != nil && t.account == account.UID && time.Now().Before(t.renew) {
		return nil
	}

	life := int64(tokenLife)
	got, err := accounts.CreateToken(ctx, name,
		&authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
			ExpirationSeconds: &life,
			BoundObjectRef: &authenticationv1.BoundObjectReference{Kind: "Node", APIVersion: "v1",
				Name: Name, UID: h.node},
		}}, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("token of %s: %w", name, err)
	}

	ca, err := h.client.CoreV1().ConfigMaps(metav1.NamespaceSystem).Get(ctx, "kube-root-ca.crt",
		metav1.GetOptions{})
	if err != nil {
		return err
	}
	if err := h.WriteFile("/run/lab/"+name+"/ca.crt", []byte(ca.Data["ca.crt"])); err != nil {
		return err
	}
	if err := h.WriteFile("/run/lab/"+name+"/token", []byte(got.Status.Token)); err != nil {
		return err
	}

	h.tokens[name] = &token{account.UID, time.Now().Add(tokenLife * time.Second * 4 / 5)}
	return nil
}

// proxyArguments returns the arguments of kubeadm's kube-proxy, except for two differences: the
// mode (see ClusterConfig.ProxyMode in package vm), and that kube-proxy does not change the size of
// the connection table, which belongs to the whole machine.
func (h *Host) proxyArguments() []string {
	return []string{
		"--kubeconfig=" + proxyConfig, "--hostname-override=" + Name,
		"--proxy-mode=" + h.o.ProxyMode,
		"--cluster-cidr=" + h.o.ClusterCIDR,
		"--conntrack-max-per-core=0", "--conntrack-min=0", "--conntrack-tcp-timeout-established=0",
		"--conntrack-tcp-timeout-close-wait=0",
	}
}

// heartbeat updates the status of the Node and renews its lease. It creates each of them if it is
// missing.
func (h *Host) heartbeat(ctx context.Context, ready bool) error {
	nodes := h.client.CoreV1().Nodes()
	node, err := nodes.Get(ctx, Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		node, err = nodes.Create(ctx, &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{
				Name: Name,
				// The label kubernetes.io/os, by which DaemonSets select nodes, is left out: pods
				// do not run here.
				Labels: map[string]string{corev1.LabelHostname: Name,
					"node-role.kubernetes.io/control-plane": ""},
			},
			Spec: corev1.NodeSpec{Taints: []corev1.Taint{
				{Key: "node-role.kubernetes.io/control-plane",
					Effect: corev1.TaintEffectNoSchedule}}},
		}, metav1.CreateOptions{})
	}

	if err != nil {
		return err
	}

	h.node = node.UID
	node.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeHostName, Address: Name}}
	for _, p := range h.o.Addrs {
		node.Status.Addresses = append(node.Status.Addresses,
			corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: p.String()})
	}

	if node.Status.NodeInfo, err = nodeInfo(); err != nil {
		return err
	}

	node.Status.Conditions = []corev1.NodeCondition{readyCondition(ready, node.Status.Conditions)}
	if _, err := nodes.UpdateStatus(ctx, node, metav1.UpdateOptions{}); err != nil {
		return err
	}

	return h.renewLease(ctx)
}

func (h *Host) renewLease(ctx context.Context) error {
	leases := h.client.CoordinationV1().Leases(corev1.NamespaceNodeLease)
	lease, err := leases.Get(ctx, Name, metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	missing := err != nil
	holder, seconds, now := Name, int32(40), metav1.NowMicro()
	if missing {
		lease = &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: Name,
			OwnerReferences: []metav1.OwnerReference{
				{APIVersion: "v1", Kind: "Node", Name: Name, UID: h.node},
			}}}
	}
	lease.Spec.HolderIdentity, lease.Spec.LeaseDurationSeconds, lease.Spec.RenewTime = &holder,
		&seconds, &now
	if missing {
		_, err = leases.Create(ctx, lease, metav1.CreateOptions{})
	} else {
		_, err = leases.Update(ctx, lease, metav1.UpdateOptions{})
	}
	return err
}
