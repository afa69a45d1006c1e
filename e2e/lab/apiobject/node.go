package apiobject

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kubeveil/kubeveil/pkg/cluster"
	"github.com/kubeveil/kubeveil/pkg/kube/veilnode"
)

var veilNodes = schema.GroupVersionResource{Group: veilnode.Group, Version: veilnode.Version,
	Resource: veilnode.Resource}

// RegisterNode creates a Node that is Ready, like a kubelet and the controller that assigns pod
// CIDRs.
func (c Client) RegisterNode(ctx context.Context, n cluster.Node) (types.UID, error) {
	now := metav1.Now()
	node, err := c.makeNode(ctx, n,
		map[string]string{corev1.LabelHostname: n.Name, corev1.LabelOSStable: "linux"},
		corev1.NodeStatus{
			Addresses: []corev1.NodeAddress{{Type: corev1.NodeHostName, Address: n.Name}},
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue,
				Reason: "KubeletReady", LastHeartbeatTime: now, LastTransitionTime: now}}})
	if err != nil {
		return "", err
	}
	return node.UID, nil
}

// makeNode creates a Node with labels and a status, to which it adds the addresses of n.
func (c Client) makeNode(ctx context.Context, n cluster.Node, labels map[string]string,
	status corev1.NodeStatus) (*corev1.Node, error) {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: n.Name, Labels: labels}}
	for _, p := range n.PodPrefixes {
		node.Spec.PodCIDRs = append(node.Spec.PodCIDRs, p.String())
	}
	if len(n.PodPrefixes) > 0 {
		node.Spec.PodCIDR = node.Spec.PodCIDRs[0]
	}
	node, err := c.Kubernetes.CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{})
	if err != nil {
		return nil, err
	}
	node.Status = status
	for _, a := range n.Addresses {
		node.Status.Addresses = append(node.Status.Addresses,
			corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: a.String()})
	}
	return c.Kubernetes.CoreV1().Nodes().UpdateStatus(ctx, node, metav1.UpdateOptions{})
}

// AddNode creates a Node and, if n has a claim, its VeilNode.
func (c Client) AddNode(ctx context.Context, n cluster.Node) error {
	node, err := c.makeNode(ctx, n, nil, corev1.NodeStatus{})
	if err != nil || n.Claim == nil {
		return err
	}

	var keys, endpoints, prefixes []any
	for _, k := range n.Claim.Keys {
		keys = append(keys, map[string]any{"epoch": int64(k.Epoch), "publicKey": k.Public.String()})
	}
	for _, e := range n.Claim.Endpoints {
		endpoints = append(endpoints, e.String())
	}
	for _, p := range n.Claim.PodPrefixes {
		prefixes = append(prefixes, p.String())
	}
	v := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": veilnode.Group + "/" + veilnode.Version, "kind": "VeilNode",
		"metadata": map[string]any{"name": n.Name, "ownerReferences": []any{map[string]any{
			"apiVersion": "v1", "kind": "Node", "name": n.Name, "uid": string(node.UID)}}},
		"spec": map[string]any{"keys": keys, "endpoints": endpoints, "podPrefixes": prefixes},
	}}
	_, err = c.Dynamic.Resource(veilNodes).Create(ctx, v, metav1.CreateOptions{})
	return err
}

// DeleteNode deletes the Node and the VeilNode called name.
func (c Client) DeleteNode(ctx context.Context, name string) error {
	if err := c.Dynamic.Resource(veilNodes).Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
		return err
	}
	return c.Kubernetes.CoreV1().Nodes().Delete(ctx, name, metav1.DeleteOptions{})
}
