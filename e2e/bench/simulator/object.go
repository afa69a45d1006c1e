package simulator

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/kubeveil/kubeveil/e2e/scale/apifeed"
	"github.com/kubeveil/kubeveil/e2e/scale/apiwrite"
	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/cluster"
	"github.com/kubeveil/kubeveil/pkg/kube/veilnode"
	"github.com/kubeveil/kubeveil/pkg/wgkey"
)

// nodeOf returns the node with number i, less than 10,000. Its address is in 198.18.4.0/22 and the
// ranges after it, and its pod prefix is a /30 in 198.19.16.0/20 and the ranges after it.
func nodeOf(i int) cluster.Node {
	prefix := netip.PrefixFrom(netip.AddrFrom4([4]byte{198, 19, byte(16 + i/64),
		byte(i % 64 * 4)}), 30)
	addr := netip.AddrFrom4([4]byte{198, 18, byte(4 + i/250), byte(1 + i%250)})
	name := fmt.Sprintf("node-%d.example", i)
	return cluster.Node{Name: name, Addresses: []netip.Addr{addr},
		PodPrefixes: []netip.Prefix{prefix}, Claim: &cluster.Claim{
			Keys:        []cluster.Key{{Public: wgkey.Public(sha256.Sum256([]byte(name)))}},
			Endpoints:   []netip.AddrPort{netip.AddrPortFrom(addr, abi.TunnelPort)},
			PodPrefixes: []netip.Prefix{prefix}, MTU: 1500}}
}

// kubeNode returns the Node of a node.
func kubeNode(n cluster.Node) *corev1.Node {
	prefix := n.PodPrefixes[0].String()
	return &corev1.Node{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"},
		ObjectMeta: metav1.ObjectMeta{Name: n.Name},
		Spec:       corev1.NodeSpec{PodCIDR: prefix, PodCIDRs: []string{prefix}},
		Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{
			{Type: corev1.NodeInternalIP, Address: n.Addresses[0].String()}}}}
}

// veilNode returns the VeilNode of a node, which its Node with a UID owns.
func veilNode(n cluster.Node, uid string) (*unstructured.Unstructured, error) {
	text, err := veilnode.Encode(*n.Claim)
	if err != nil {
		return nil, err
	}
	var spec map[string]any
	if err := json.Unmarshal(text, &spec); err != nil {
		return nil, err
	}
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": veilnode.Group + "/" + veilnode.Version, "kind": "VeilNode",
		"metadata": map[string]any{"name": n.Name, "ownerReferences": []any{map[string]any{
			"apiVersion": "v1", "kind": "Node", "name": n.Name, "uid": uid}}},
		"spec": spec}}, nil
}

// createNodes creates the Nodes and VeilNodes with numbers from first to end-1.
func (s *run) createNodes(ctx context.Context, first, end int) error {
	var nodes []*corev1.Node
	for i := first; i < end; i++ {
		nodes = append(nodes, kubeNode(nodeOf(i)))
	}
	if err := apiwrite.SendAll(ctx, s.writer, nodes); err != nil {
		return err
	}

	list, err := s.lab.Control.Client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	uids := map[string]string{}
	for _, n := range list.Items {
		uids[n.Name] = string(n.UID)
	}
	var claims []*unstructured.Unstructured
	for i := first; i < end; i++ {
		n := nodeOf(i)
		claim, err := veilNode(n, uids[n.Name])
		if err != nil {
			return err
		}
		claims = append(claims, claim)
	}
	return apiwrite.SendAll(ctx, s.writer, claims)
}

// deleteNodes deletes the Nodes and VeilNodes with numbers from first to end-1.
func (s *run) deleteNodes(ctx context.Context, first, end int) error {
	var requests []apiwrite.Request
	for i := first; i < end; i++ {
		n := nodeOf(i)
		claim, err := veilNode(n, "")
		if err != nil {
			return err
		}
		requests = append(requests, apiwrite.Delete(claim), apiwrite.Delete(kubeNode(n)))
	}
	return s.writer.Send(ctx, requests)
}

func (s *run) createNamespaces(ctx context.Context) error {
	return apiwrite.SendAll(ctx, s.writer, apifeed.Namespaces())
}

func (s *run) createServices(ctx context.Context) error {
	var all []*corev1.Service
	for i := range s.shape.Services() {
		all = append(all, s.shape.Service(i))
	}
	return apiwrite.SendAll(ctx, s.writer, all)
}

// createSlices creates the slices of all services. It encodes some at a time, because all together
// need a gigabyte of memory.
func (s *run) createSlices(ctx context.Context) error {
	const some = 500
	var all []*discoveryv1.EndpointSlice
	for i := range s.shape.Services() {
		all = append(all, s.shape.Slices(i)...)
		if len(all) < some && i < s.shape.Services()-1 {
			continue
		}
		if err := apiwrite.SendAll(ctx, s.writer, all); err != nil {
			return err
		}
		all = nil
	}
	return nil
}

// deleteSlices deletes the slices of all services.
func (s *run) deleteSlices(ctx context.Context) error {
	return s.writer.Send(ctx, apiwrite.DeleteSlices())
}

// moveEndpoint changes the address of an endpoint of service i to one that no endpoint had before.
func (s *run) moveEndpoint(ctx context.Context, i, number int) error {
	slice := s.shape.First(i)
	slice.Endpoints[number%len(slice.Endpoints)].Addresses[0] =
		apifeed.Addr(s.shape.Endpoints + number).String()
	request, err := apiwrite.Update(slice)
	if err != nil {
		return err
	}
	return s.writer.Send(ctx, []apiwrite.Request{request})
}
