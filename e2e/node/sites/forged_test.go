package sites_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/pkg/site/link"
	"github.com/kubeveil/kubeveil/pkg/site/record"
	"github.com/kubeveil/kubeveil/pkg/wgkey"
)

// The administrator of b writes records that b's veil-site would not write. Addresses that are not
// b's pods are refused in a, and shown there.
func (p pair) forged(ctx context.Context, t *testing.T) {
	p.b.stop()
	as, namespace := p.b.as(ctx, t), link.NamespacePrefix+"a"
	service := map[string]any{"ports": []any{map[string]any{"protocol": "TCP", "port": int64(80)}},
		"v4": true}
	var endpoints []any
	bad := []string{"10.244.0.5", "192.0.2.1", "198.51.100.1", "169.254.169.254", "127.0.0.1",
		"203.0.113.1", "10.96.0.1"}
	for _, a := range append(bad, "10.245.0.66") {
		endpoints = append(endpoints, map[string]any{"address": a, "ready": true})
	}
	service["slices"] = []any{map[string]any{"endpoints": endpoints, "ports": service["ports"]}}
	forge(ctx, t, as, namespace, "service.shop.evil", map[string]any{"service": service})
	forge(ctx, t, as, namespace, "service.kube-system.evil", map[string]any{"service": service})
	node := func(addr, prefix string, key byte) map[string]any {
		return map[string]any{"node": map[string]any{"addresses": []any{addr},
			"podPrefixes": []any{prefix},
			"endpoints":   []any{addr + ":51820"}, "keys": []any{map[string]any{"epoch": int64(0),
				"publicKey": wgkey.Public{31: key}.String()}}}}
	}
	forge(ctx, t, as, namespace, "node.address", node("192.0.2.1", "10.245.9.0/24", 1))
	forge(ctx, t, as, namespace, "node.prefix", node("198.51.100.9", "10.244.0.0/24", 2))
	forge(ctx, t, as, namespace, "node.key", node("198.51.100.9", "10.245.9.0/24", 'a'))
	touchHead(ctx, t, as, namespace, "forged", nil)

	until(ctx, t, "only b's own pod is served", func() error {
		_, addrs, err := p.a.served(ctx, "evil")
		if err != nil || !slices.Equal(addrs["b"], []string{"10.245.0.66"}) {
			return fmt.Errorf("addresses %v: %w", addrs, err)
		}
		return nil
	})
	until(ctx, t, "each is shown", func() error {
		o, err := p.a.Control.Dynamic.Resource(links).Get(ctx, "b", metav1.GetOptions{})
		if err != nil {
			return err
		}
		all, _, err := unstructured.NestedStringSlice(o.Object, "status", "problems")
		problems := strings.Join(all, "\n")
		for _, a := range append(bad, "node address is refused", "node prefix is refused",
			"node key is refused") {
			if !strings.Contains(problems, a) {
				return fmt.Errorf("problems %q without %s: %w", problems, a, err)
			}
		}
		if n, _, _ := unstructured.NestedInt64(o.Object, "status",
			"refused"); n != int64(len(bad))+3 {
			return fmt.Errorf("%d are refused", n)
		}
		return nil
	})
	list, err := p.a.Control.Dynamic.Resource(siteNodes).List(ctx, metav1.ListOptions{})
	if err != nil || len(list.Items) != 1 || list.Items[0].GetName() != "b.node-1" {
		t.Errorf("SiteNodes %+v: %v", list, err)
	}

	touchHead(ctx, t, as, namespace, "overlap", []any{"10.244.128.0/17"})
	until(ctx, t, "overlapping ranges are refused", func() error {
		c, err := p.a.conditions(ctx, links, "", "b")
		if err != nil || !strings.HasPrefix(c["Overlap"], "True Overlap: 10.244.128.0/17 of b "+
			"overlaps 10.244.0.0/16 of this cluster") {
			return fmt.Errorf("conditions %q: %w", c, err)
		}
		return p.a.gone(ctx, "evil")
	})

	p.b.start(ctx)
	until(ctx, t, "b's veil-site removes what is forged", func() error {
		if err := p.a.gone(ctx, "evil"); err != nil {
			return err
		}
		_, addrs, err := p.a.served(ctx, "web")
		if err != nil || len(addrs["b"]) != 2 {
			return fmt.Errorf("addresses %v: %w", addrs, err)
		}
		return nil
	})
}

// forge creates a SiteRecord.
func forge(ctx context.Context, t *testing.T, as dynamic.Interface, namespace, name string,
	spec map[string]any) {
	t.Helper()
	_, err := as.Resource(records).Namespace(namespace).Create(ctx, &unstructured.Unstructured{
		Object: map[string]any{"apiVersion": kubeveil.String(), "kind": "SiteRecord",
			"metadata": map[string]any{"name": name}, "spec": spec}}, metav1.CreateOptions{})
	errtest.Must(t, err)
}

// touchHead changes the digest of the records, and their pod ranges if they are not nil.
func touchHead(ctx context.Context, t *testing.T, as dynamic.Interface, namespace, digest string,
	podRanges []any) {
	t.Helper()
	r := as.Resource(records).Namespace(namespace)
	// veil-site may read single records in no cluster of its own: it lists them.
	list, err := r.List(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + record.NameHead})
	errtest.Must(t, err)
	head := &list.Items[0]
	errtest.Must(t, unstructured.SetNestedField(head.Object, digest, "spec", "head", "digest"))
	if podRanges != nil {
		errtest.Must(t, unstructured.SetNestedSlice(head.Object, podRanges, "spec", "head",
			"podRanges"))
	}
	_, err = r.Update(ctx, head, metav1.UpdateOptions{})
	errtest.Must(t, err)
}
