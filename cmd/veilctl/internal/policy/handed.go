package policy

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/kubeveil/kubeveil/cmd/veilctl/internal/verb"
	"github.com/kubeveil/kubeveil/pkg/policy"
	"github.com/kubeveil/kubeveil/pkg/remote"
)

// handOver is the flag that makes veilctl read the objects of the cluster, and handOverUsage its
// help.
const (
	handOver      = "hand-over"
	handOverUsage = "read pods, namespaces, nodes and policies with your\nrights, for nodes with " +
		"policy none"
)

// pageSize is the number of objects in one answer of the API server.
const pageSize = 500

var clusterPolicies = schema.GroupVersionResource{Group: "policy.networking.k8s.io",
	Version: "v1alpha2", Resource: "clusternetworkpolicies"}

// handed returns the objects of a cluster that a veild without policies does not keep, without the
// fields that policies do not use. It reads them with the credentials of k.
func handed(ctx context.Context, k *remote.Cluster) (*policy.Handed, error) {
	h := &handing{}
	core, policies := k.Client.CoreV1(), k.Client.NetworkingV1()
	err := each(ctx, "namespaces", core.Namespaces().List, func(l *corev1.NamespaceList) {
		for _, n := range l.Items {
			h.add(&corev1.Namespace{TypeMeta: typeOf("v1", "Namespace"),
				ObjectMeta: metaOf(n.ObjectMeta)})
		}
	})
	if err != nil {
		return nil, err
	}
	err = each(ctx, "nodes", core.Nodes().List, func(l *corev1.NodeList) {
		for _, n := range l.Items {
			h.add(&corev1.Node{TypeMeta: typeOf("v1", "Node"), ObjectMeta: metaOf(n.ObjectMeta)})
		}
	})
	if err != nil {
		return nil, err
	}
	err = each(ctx, "pods", core.Pods("").List, func(l *corev1.PodList) {
		for _, p := range l.Items {
			if p.Status.Phase != corev1.PodSucceeded && p.Status.Phase != corev1.PodFailed {
				h.add(podOf(p))
			}
		}
	})
	if err != nil {
		return nil, err
	}

	policyType := typeOf(networkingv1.SchemeGroupVersion.String(), policy.KindNetworkPolicy)
	err = each(ctx, "networkpolicies", policies.NetworkPolicies("").List,
		func(l *networkingv1.NetworkPolicyList) {
			for _, p := range l.Items {
				h.add(&networkingv1.NetworkPolicy{TypeMeta: policyType,
					ObjectMeta: metaOf(p.ObjectMeta), Spec: p.Spec})
			}
		})
	if err != nil {
		return nil, err
	}
	list, err := k.Dynamic.Resource(clusterPolicies).List(ctx, metav1.ListOptions{})
	switch {
	case apierrors.IsNotFound(err): // the kind is not installed
		return &h.Handed, h.check()
	case err != nil:
		return nil, fmt.Errorf("--%s: list clusternetworkpolicies: %w", handOver, err)
	}
	for _, p := range list.Items {
		p.SetManagedFields(nil)
		p.SetAnnotations(nil)
		h.addJSON(p.MarshalJSON())
	}
	return &h.Handed, h.check()
}

// each passes all pages of a list to add.
func each[L metav1.ListInterface](ctx context.Context, what string,
	list func(context.Context, metav1.ListOptions) (L, error), add func(L)) error {
	for o := (metav1.ListOptions{Limit: pageSize}); ; {
		page, err := list(ctx, o)
		if err != nil {
			return fmt.Errorf("--%s: list %s: %w", handOver, what, err)
		}
		add(page)
		if o.Continue = page.GetContinue(); o.Continue == "" {
			return nil
		}
	}
}

// handing collects objects.
type handing struct {
	policy.Handed
	bytes int
	err   error // the first
}

func (h *handing) add(o runtime.Object) {
	message, err := runtime.Encode(toProtobuf, o)
	if h.bytes += len(message) * 4 / 3; h.fits(err) { // in JSON, messages are in base64
		h.Protobuf = append(h.Protobuf, message)
	}
}

func (h *handing) addJSON(text []byte, err error) {
	if h.bytes += len(text); h.fits(err) {
		h.JSON = append(h.JSON, text)
	}
}

// fits reports whether another object may be kept. err is the error of its encoding.
func (h *handing) fits(err error) bool {
	if h.err == nil {
		h.err = err
	}
	return h.err == nil && h.bytes < verb.MaxInput
}

func (h *handing) check() error {
	if h.err == nil && h.bytes >= verb.MaxInput {
		return fmt.Errorf("--%s: the cluster's pods, namespaces, nodes and policies need %d MiB, "+
			"more than veild reads (%d MiB): set policy: kubernetes, with which veild keeps them",
			handOver, h.bytes>>20+1, verb.MaxInput>>20)
	}
	return h.err
}

func typeOf(version, kind string) metav1.TypeMeta {
	return metav1.TypeMeta{APIVersion: version, Kind: kind}
}

// metaOf returns what policies use of an object's metadata.
func metaOf(m metav1.ObjectMeta) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: m.Namespace, Name: m.Name, UID: m.UID, Labels: m.Labels,
		Generation: m.Generation}
}

// podOf returns what policies use of a pod.
func podOf(p corev1.Pod) *corev1.Pod {
	slim := &corev1.Pod{TypeMeta: typeOf("v1", "Pod"), ObjectMeta: metaOf(p.ObjectMeta)}
	if uid, mirror := p.Annotations[corev1.MirrorPodAnnotationKey]; mirror {
		slim.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: uid}
	}
	slim.Spec.NodeName, slim.Spec.HostNetwork = p.Spec.NodeName, p.Spec.HostNetwork
	slim.Spec.Containers = portsOf(p.Spec.Containers)
	slim.Spec.InitContainers = portsOf(p.Spec.InitContainers)
	slim.Status.Phase = p.Status.Phase
	slim.Status.PodIP, slim.Status.PodIPs = p.Status.PodIP, p.Status.PodIPs
	return slim
}

// portsOf returns the containers with ports, with nothing but these and the restart policy.
func portsOf(all []corev1.Container) (kept []corev1.Container) {
	for _, c := range all {
		if len(c.Ports) > 0 {
			kept = append(kept, corev1.Container{Ports: c.Ports, RestartPolicy: c.RestartPolicy})
		}
	}
	return kept
}
