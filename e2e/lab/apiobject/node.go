package apiobject

import (
	"context"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kubeveil/kubeveil/pkg/cluster"
	"github.com/kubeveil/kubeveil/pkg/kube/object"
	"github.com/kubeveil/kubeveil/pkg/kube/veilnode"
)

// VeilNodes is the resource of VeilNodes.
var VeilNodes = schema.GroupVersionResource{Group: veilnode.Group, Version: veilnode.Version,
	Resource: veilnode.Resource}

var siteNodes = VeilNodes.GroupVersion().WithResource(object.SiteNodeResource)

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

	spec := specOf(n.Claim)
	if n.Claim.MTU != 0 {
		spec["mtu"] = int64(n.Claim.MTU)
	}
	v := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": veilnode.Group + "/" + veilnode.Version, "kind": "VeilNode",
		"metadata": map[string]any{"name": n.Name, "ownerReferences": []any{map[string]any{
			"apiVersion": "v1", "kind": "Node", "name": n.Name, "uid": string(node.UID)}}},
		"spec": spec,
	}}
	_, err = c.Dynamic.Resource(VeilNodes).Create(ctx, v, metav1.CreateOptions{})
	return err
}

// specOf returns the spec of a VeilNode with a claim.
func specOf(c *cluster.Claim) map[string]any {
	var keys, endpoints, prefixes []any
	for _, k := range c.Keys {
		keys = append(keys, map[string]any{"epoch": int64(k.Epoch), "publicKey": k.Public.String()})
	}
	for _, e := range c.Endpoints {
		endpoints = append(endpoints, e.String())
	}
	for _, p := range c.PodPrefixes {
		prefixes = append(prefixes, p.String())
	}
	return map[string]any{"keys": keys, "endpoints": endpoints, "podPrefixes": prefixes}
}

// PutSiteNode creates or replaces the SiteNode of a node with a claim. The name of n has the site.
func (c Client) PutSiteNode(ctx context.Context, n cluster.Node) error {
	spec := specOf(n.Claim)
	var addrs []any
	for _, a := range n.Addresses {
		addrs = append(addrs, a.String())
	}
	spec["addresses"] = addrs
	o := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": siteNodes.GroupVersion().String(), "kind": object.SiteNodeKind,
		"metadata": map[string]any{"name": strings.Replace(n.Name, "/", ".", 1)}, "spec": spec}}
	all := c.Dynamic.Resource(siteNodes)
	err := all.Delete(ctx, o.GetName(), metav1.DeleteOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	_, err = all.Create(ctx, o, metav1.CreateOptions{})
	return err
}

// DeleteNode deletes the Node and the VeilNode called name.
func (c Client) DeleteNode(ctx context.Context, name string) error {
	if err := c.Dynamic.Resource(VeilNodes).Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
		return err
	}
	return c.Kubernetes.CoreV1().Nodes().Delete(ctx, name, metav1.DeleteOptions{})
}
