package lab

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"net/netip"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kubeveil/kubeveil/e2e/lab"
	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/cluster"
	"github.com/kubeveil/kubeveil/pkg/kube/veilnode"
	"github.com/kubeveil/kubeveil/pkg/wgkey"
)

// Fake nodes exist only in the API. No host has their addresses.

var veilNodes = schema.GroupVersionResource{Group: veilnode.Group, Version: veilnode.Version,
	Resource: veilnode.Resource}

func fakeName(i int) string { return fmt.Sprintf("fake-%04d", i) }

// fakeAddr returns the address of fake node i, in 198.18.4.0/22.
func fakeAddr(i int) netip.Addr {
	return netip.AddrFrom4([4]byte{198, 18, byte(4 + i/250), byte(1 + i%250)})
}

// fakePrefix returns the pod prefix of fake node i, a /28 in 198.19.64.0/18.
func fakePrefix(i int) netip.Prefix {
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{198, 19, byte(64 + i/16),
		byte(i % 16 * 16)}), 28)
}

// fakePrefixes returns the pod prefixes of fake node i, in the IP families of the lab.
func (s *scaled) fakePrefixes(i int) []netip.Prefix {
	prefixes := []netip.Prefix{fakePrefix(i)}
	if s.lab.Family() == lab.Dual {
		a := s.lab.Family().ClusterRanges()[1].Addr().As16()
		a[6], a[7] = byte(1+i/256), byte(i)
		prefixes = append(prefixes, netip.PrefixFrom(netip.AddrFrom16(a), 64))
	}
	return prefixes
}

func (s *scaled) fakeClaim(i int, port uint16) cluster.Claim {
	return cluster.Claim{
		Keys:        []cluster.Key{{Public: wgkey.Public(sha256.Sum256([]byte(fakeName(i))))}},
		Endpoints:   []netip.AddrPort{netip.AddrPortFrom(fakeAddr(i), port)},
		PodPrefixes: s.fakePrefixes(i), MTU: 1500,
	}
}

// register makes the API objects of all fake nodes, by several requests at a time.
func (s *scaled) register(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var wg sync.WaitGroup
	numbers := make(chan int)
	for range workers {
		wg.Go(func() {
			for i := range numbers {
				if err := s.registerOne(ctx, i); err != nil {
					cancel(fmt.Errorf("register %s: %w", fakeName(i), err))
				}
			}
		})
	}
	for i := range s.nodes {
		numbers <- i
	}
	close(numbers)
	wg.Wait()
	return context.Cause(ctx)
}

func (s *scaled) registerOne(ctx context.Context, i int) error {
	if ctx.Err() != nil {
		return nil
	}

	var cidrs []string
	for _, p := range s.fakePrefixes(i) {
		cidrs = append(cidrs, p.String())
	}

	nodes := s.lab.Control.Client.CoreV1().Nodes()
	n, err := nodes.Create(ctx, &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: fakeName(i),
			Labels: map[string]string{corev1.LabelHostname: fakeName(i)}},
		Spec: corev1.NodeSpec{PodCIDR: cidrs[0], PodCIDRs: cidrs},
	}, metav1.CreateOptions{})
	if err != nil {
		return err
	}

	n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP,
		Address: fakeAddr(i).String()}}
	if n, err = nodes.UpdateStatus(ctx, n, metav1.UpdateOptions{}); err != nil {
		return err
	}
	text, err := veilnode.Encode(s.fakeClaim(i, abi.TunnelPort))
	if err != nil {
		return err
	}
	spec, err := object(text)
	if err != nil {
		return err
	}

	o := &unstructured.Unstructured{Object: map[string]any{"spec": spec}}
	o.SetGroupVersionKind(schema.GroupVersionKind{Group: veilnode.Group, Version: veilnode.Version,
		Kind: veilnode.Kind})
	o.SetName(fakeName(i))
	o.SetOwnerReferences([]metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: n.Name,
		UID: n.UID}})
	_, err = s.lab.Control.Dynamic.Resource(veilNodes).Create(ctx, o, metav1.CreateOptions{})
	return err
}

// moveEndpoint changes the port of the endpoint that fake node i claims.
func (s *scaled) moveEndpoint(ctx context.Context, i int, port uint16) error {
	text, err := veilnode.Encode(s.fakeClaim(i, port))
	if err != nil {
		return err
	}
	patch := fmt.Appendf(nil, `{"spec":%s}`, text)
	_, err = s.lab.Control.Dynamic.Resource(veilNodes).Patch(ctx, fakeName(i), types.MergePatchType,
		patch, metav1.PatchOptions{})
	return err
}

func object(text []byte) (map[string]any, error) {
	var m map[string]any
	return m, json.Unmarshal(text, &m)
}
