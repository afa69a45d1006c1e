package apiobject

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kubeveil/kubeveil/e2e/lab/authority"
)

// AddNamespace creates a namespace and, like a controller, its service account default.
func (c Client) AddNamespace(ctx context.Context, name string) error {
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if _, err := c.Kubernetes.CoreV1().Namespaces().Create(ctx, namespace,
		metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("make namespace %s: %w", name, err)
	}
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}
	if _, err := c.Kubernetes.CoreV1().ServiceAccounts(name).Create(ctx, account,
		metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("make the default account of namespace %s: %w", name, err)
	}
	return nil
}

// BindPod creates the object of a pod that is bound to a node.
func (c Client) BindPod(ctx context.Context, node, namespace, name string,
	labels map[string]string) (*corev1.Pod, error) {
	no := false
	o, err := c.Kubernetes.CoreV1().Pods(namespace).Create(ctx, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels},
		Spec: corev1.PodSpec{NodeName: node, AutomountServiceAccountToken: &no,
			Containers: []corev1.Container{{Name: "c", Image: "none"}}},
	}, metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("create pod %s/%s: %w", namespace, name, err)
	}
	return o, nil
}

// SetRunning writes the addresses of a running pod into the status of its object, and updates o to
// the object at the API server.
func (c Client) SetRunning(ctx context.Context, o *corev1.Pod, addrs []netip.Addr) error {
	o.Status.Phase = corev1.PodRunning
	o.Status.PodIPs = nil
	for _, a := range addrs {
		o.Status.PodIPs = append(o.Status.PodIPs, corev1.PodIP{IP: a.String()})
	}
	o.Status.PodIP = o.Status.PodIPs[0].IP
	written, err := c.Kubernetes.CoreV1().Pods(o.Namespace).UpdateStatus(ctx, o,
		metav1.UpdateOptions{})
	if err != nil {
		return fmt.Errorf("write the status of pod %s/%s: %w", o.Namespace, o.Name, err)
	}
	*o = *written
	return nil
}

// NodeToken returns a token of a service account that is bound to a Node. A kubelet gets such a
// token for a pod on its node.
func (c Client) NodeToken(ctx context.Context, namespace, account, node string,
	uid types.UID) ([]byte, error) {
	seconds := int64(authority.Lifetime.Seconds())
	token, err := c.Kubernetes.CoreV1().ServiceAccounts(namespace).CreateToken(ctx, account,
		&authenticationv1.TokenRequest{
			Spec: authenticationv1.TokenRequestSpec{
				ExpirationSeconds: &seconds,
				BoundObjectRef: &authenticationv1.BoundObjectReference{Kind: "Node",
					APIVersion: "v1", Name: node, UID: uid},
			},
		}, metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("request a token for %s: %w", node, err)
	}
	return []byte(token.Status.Token), nil
}

// Listed returns an error unless addr is among the endpoints of the service kubernetes.
func (c Client) Listed(ctx context.Context, addr netip.Addr) error {
	all, err := c.Kubernetes.DiscoveryV1().EndpointSlices("default").List(ctx,
		metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=kubernetes"})
	if err != nil {
		return err
	}
	for _, s := range all.Items {
		for _, e := range s.Endpoints {
			if slices.Contains(e.Addresses, addr.String()) {
				return nil
			}
		}
	}
	return fmt.Errorf("%s is not an endpoint of the API's service", addr)
}
