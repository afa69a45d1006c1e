package wire_test

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/pkg/kube/wire"
)

var allLabels = wire.Reader{AllLabels: true, Annotations: reader.Annotations}

func wantMeta(m metav1.ObjectMeta) wire.Meta {
	w := wire.Meta{Name: m.Name, Namespace: m.Namespace, UID: string(m.UID),
		ResourceVersion: m.ResourceVersion, Generation: m.Generation, Labels: m.Labels,
		Annotations: kept(m.Annotations, reader.Annotations)}
	if !m.CreationTimestamp.IsZero() {
		w.Created = m.CreationTimestamp.UTC()
	}
	return w
}

func busyPod() *corev1.Pod {
	always := corev1.ContainerRestartPolicyAlways
	ports := func(name string) []corev1.ContainerPort {
		return []corev1.ContainerPort{{Name: name, ContainerPort: 8080,
			Protocol: corev1.ProtocolTCP},
			{ContainerPort: 9}, {Name: name + "-udp", ContainerPort: 53,
				Protocol: corev1.ProtocolUDP}}
	}
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "web-0", Namespace: "shop", UID: "uid",
			ResourceVersion: "9", Labels: map[string]string{"app": "web", "x": ""},
			Annotations:   map[string]string{"k8s.io/initial-events-end": "true", "other": "y"},
			ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "m"}}},
		Spec: corev1.PodSpec{NodeName: "node-1", HostNetwork: true,
			InitContainers: []corev1.Container{{Name: "i", Ports: ports("init")},
				{Name: "s", Ports: ports("sidecar"), RestartPolicy: &always}},
			Containers: []corev1.Container{{Name: "c", Image: "x", Ports: ports("web"),
				Env: []corev1.EnvVar{{Name: "SECRET", Value: "s"}}}, {Name: "d"}}},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, PodIP: "198.18.0.1",
			PodIPs: []corev1.PodIP{{IP: "198.18.0.1"}, {IP: "fd42::1"}}},
	}
}

func wantPod(p *corev1.Pod) wire.Pod {
	w := wire.Pod{Meta: wantMeta(p.ObjectMeta), NodeName: p.Spec.NodeName,
		HostNetwork: p.Spec.HostNetwork, Phase: string(p.Status.Phase), PodIP: p.Status.PodIP}
	for _, ip := range p.Status.PodIPs {
		w.PodIPs = append(w.PodIPs, ip.IP)
	}
	add := func(c corev1.Container) {
		for _, port := range c.Ports {
			if port.Name != "" {
				w.Ports = append(w.Ports, wire.ContainerPort{Name: port.Name,
					Port: port.ContainerPort, Protocol: string(port.Protocol)})
			}
		}
	}
	for _, c := range p.Spec.Containers {
		add(c)
	}
	for _, c := range p.Spec.InitContainers {
		if c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			add(c)
		}
	}
	return w
}

func busyPolicy() *networkingv1.NetworkPolicy {
	udp, port, name, end := corev1.ProtocolUDP, intstr.FromInt32(80), intstr.FromString("web"),
		int32(90)
	selector := metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"},
		MatchExpressions: []metav1.LabelSelectorRequirement{
			{Key: "k", Operator: metav1.LabelSelectorOpNotIn, Values: []string{"a", "b"}},
			{Key: "k", Operator: metav1.LabelSelectorOpExists}}}
	return &networkingv1.NetworkPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: "np", Namespace: "shop", Generation: 7},
		Spec: networkingv1.NetworkPolicySpec{PodSelector: selector,
			PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress},
			Ingress: []networkingv1.NetworkPolicyIngressRule{{}, {
				Ports: []networkingv1.NetworkPolicyPort{{}, {Protocol: &udp, Port: &name},
					{Port: &port, EndPort: &end}},
				From: []networkingv1.NetworkPolicyPeer{{PodSelector: &selector},
					{NamespaceSelector: &metav1.LabelSelector{}},
					{IPBlock: &networkingv1.IPBlock{CIDR: "10.0.0.0/8",
						Except: []string{"10.1.0.0/16"}}}},
			}},
			Egress: []networkingv1.NetworkPolicyEgressRule{{
				To: []networkingv1.NetworkPolicyPeer{{}}}}},
	}
}

func wantSelector(s *metav1.LabelSelector) *wire.LabelSelector {
	if s == nil {
		return nil
	}
	w := &wire.LabelSelector{MatchLabels: s.MatchLabels}
	for _, e := range s.MatchExpressions {
		w.MatchExpressions = append(w.MatchExpressions, wire.Expression{Key: e.Key,
			Operator: string(e.Operator), Values: e.Values})
	}
	return w
}

func wantRule(ports []networkingv1.NetworkPolicyPort,
	peers []networkingv1.NetworkPolicyPeer) (r wire.PolicyRule) {
	for _, p := range ports {
		w := wire.PolicyPort{Protocol: (*string)(p.Protocol), EndPort: p.EndPort}
		if p.Port != nil {
			w.Port = &wire.IntOrString{Type: int64(p.Port.Type), IntVal: p.Port.IntVal,
				StrVal: p.Port.StrVal}
		}
		r.Ports = append(r.Ports, w)
	}
	for _, p := range peers {
		w := wire.PolicyPeer{PodSelector: wantSelector(p.PodSelector),
			NamespaceSelector: wantSelector(p.NamespaceSelector)}
		if p.IPBlock != nil {
			w.IPBlock = &wire.IPBlock{CIDR: p.IPBlock.CIDR, Except: p.IPBlock.Except}
		}
		r.Peers = append(r.Peers, w)
	}
	return r
}

// asRead are options that compare only the fields that k8s.io/api has too.
var asRead = cmp.Options{cmpopts.EquateEmpty(),
	cmpopts.IgnoreFields(wire.NetworkPolicy{}, "Elements")}

func wantPolicy(p *networkingv1.NetworkPolicy) wire.NetworkPolicy {
	w := wire.NetworkPolicy{Meta: wantMeta(p.ObjectMeta), HasEgress: len(p.Spec.Egress) > 0,
		PodSelector: *wantSelector(&p.Spec.PodSelector)}
	for _, r := range p.Spec.Ingress {
		w.Ingress = append(w.Ingress, wantRule(r.Ports, r.From))
	}
	for _, r := range p.Spec.Egress {
		w.Egress = append(w.Egress, wantRule(r.Ports, r.To))
	}
	for _, t := range p.Spec.PolicyTypes {
		w.PolicyTypes = append(w.PolicyTypes, string(t))
	}
	return w
}

func TestPodAndPolicyAreReadAsByKubernetes(t *testing.T) {
	for _, p := range []*corev1.Pod{busyPod(), {}} {
		got, err := allLabels.Pod(marshal(t, p))
		if d := cmp.Diff(wantPod(p), got, cmpopts.EquateEmpty()); err != nil || d != "" {
			t.Errorf("%v, k8s.io/api -, ours +:\n%s", err, d)
		}
	}
	for _, p := range []*networkingv1.NetworkPolicy{busyPolicy(), {}} {
		got, err := allLabels.NetworkPolicy(marshal(t, p))
		if d := cmp.Diff(wantPolicy(p), got, asRead); err != nil || d != "" {
			t.Errorf("%v, k8s.io/api -, ours +:\n%s", err, d)
		}
	}
	ns := &corev1.Namespace{ObjectMeta: busyPod().ObjectMeta, Spec: corev1.NamespaceSpec{
		Finalizers: []corev1.FinalizerName{"kubernetes"}}}
	got, err := allLabels.Object(marshal(t, ns))
	if d := cmp.Diff(wantMeta(ns.ObjectMeta), got, cmpopts.EquateEmpty()); err != nil || d != "" {
		t.Errorf("namespace: %v\n%s", err, d)
	}
}

// A newer API server may have fields by which a rule allows less.
func TestPolicyWithUnknownFieldsIsMarked(t *testing.T) {
	for name, spec := range map[string]string{
		"spec":       "\x7a\x01x",
		"rule":       "\x12\x03\x7a\x01x",
		"port":       "\x12\x05\x0a\x03\x7a\x01x",
		"peer":       "\x12\x05\x12\x03\x7a\x01x",
		"block":      "\x12\x07\x12\x05\x1a\x03\x7a\x01x",
		"selector":   "\x0a\x03\x7a\x01x",
		"expression": "\x0a\x05\x12\x03\x7a\x01x",
	} {
		t.Run(name, func(t *testing.T) {
			message := append([]byte{0x12, byte(len(spec))}, spec...)
			got, err := allLabels.NetworkPolicy(message)
			if err != nil || !got.Unknown {
				t.Errorf("%+v, %v", got, err)
			}
		})
	}
}

// excessive reports whether something of an object was left out, and so may differ.
func excessive(m wire.Meta, excess bool) bool {
	for _, value := range m.Annotations {
		excess = excess || value == ""
	}
	return excess || m.LabelsExcess
}

// The largest policy that a node puts in force is read whole, and one more rule makes it too large.
func TestBoundAdmitsWhatANodePutsInForce(t *testing.T) {
	port, udp := intstr.FromInt32(1), corev1.ProtocolUDP
	policy := func(rules int) *networkingv1.NetworkPolicy {
		var np networkingv1.NetworkPolicy
		for range rules {
			ports := []networkingv1.NetworkPolicyPort{{Port: &port, Protocol: &udp}}
			peers := []networkingv1.NetworkPolicyPeer{{IPBlock: &networkingv1.IPBlock{
				CIDR: "2001:db8:ffff:ffff:ffff:ffff:ffff:ffff/128"}}}
			np.Spec.Ingress = append(np.Spec.Ingress,
				networkingv1.NetworkPolicyIngressRule{Ports: ports, From: peers})
			np.Spec.Egress = append(np.Spec.Egress,
				networkingv1.NetworkPolicyEgressRule{Ports: ports, To: peers})
		}
		return &np
	}

	got, err := allLabels.NetworkPolicy(marshal(t, policy(4096)))
	if err != nil || got.Excess || len(got.Ingress) != 4096 || len(got.Egress) != 4096 {
		t.Errorf("%d rules, excess %t, %v", len(got.Ingress), got.Excess, err)
	}
	if got.Elements != wire.MaxRules {
		t.Errorf("%d elements, want %d", got.Elements, wire.MaxRules)
	}
	got, err = allLabels.NetworkPolicy(marshal(t, policy(4097)))
	if err != nil || !got.Excess || !got.HasEgress || got.Ingress != nil || got.Egress != nil ||
		got.Elements != 0 {
		t.Errorf("%+v, %v", got, err)
	}
}

func FuzzPod(f *testing.F) {
	f.Add(marshal(f, busyPod()))
	f.Fuzz(func(t *testing.T, data []byte) {
		got, err := allLabels.Pod(data)
		if err != nil && !errors.Is(err, wire.ErrMalformed) {
			t.Fatalf("%v does not match ErrMalformed", err)
		}
		var theirs corev1.Pod
		if theirs.Unmarshal(data) != nil {
			return
		}

		if err == nil && excessive(got.Meta, got.Excess) {
			return
		}
		if err == nil {
			w := wantPod(&theirs)
			w.Labels, w.Annotations, got.Labels, got.Annotations = nil, nil, nil, nil
			// Ports are in the order of the message, in which kinds of containers may mix.
			less := func(a, b wire.ContainerPort) bool {
				return a.Name < b.Name || a.Name == b.Name && (a.Port < b.Port ||
					a.Port == b.Port && a.Protocol < b.Protocol)
			}
			if d := cmp.Diff(w, got, cmpopts.EquateEmpty(), cmpopts.SortSlices(less)); d != "" {
				t.Fatalf("k8s.io/api -, ours +:\n%s", d)
			}
		}

		got, err = allLabels.Pod(marshal(t, &theirs))
		if err == nil && excessive(got.Meta, got.Excess) {
			return
		}
		if d := cmp.Diff(wantPod(&theirs), got, cmpopts.EquateEmpty()); err != nil || d != "" {
			t.Fatalf("what k8s.io/api wrote: %v\n%s", err, d)
		}
	})
}

func FuzzNetworkPolicy(f *testing.F) {
	f.Add(marshal(f, busyPolicy()))
	f.Fuzz(func(t *testing.T, data []byte) {
		_, err := allLabels.NetworkPolicy(data)
		if err != nil && !errors.Is(err, wire.ErrMalformed) {
			t.Fatalf("%v does not match ErrMalformed", err)
		}
		var theirs networkingv1.NetworkPolicy
		if theirs.Unmarshal(data) != nil {
			return
		}
		got, err := allLabels.NetworkPolicy(marshal(t, &theirs))
		if err == nil && excessive(got.Meta, got.Excess || got.SubjectsExcess) {
			return
		}
		if d := cmp.Diff(wantPolicy(&theirs), got, asRead); err != nil || d != "" {
			t.Fatalf("what k8s.io/api wrote: %v\n%s", err, d)
		}
	})
}

func BenchmarkPod(b *testing.B) {
	data := marshal(b, busyPod())
	b.ReportAllocs()
	for b.Loop() {
		errtest.Must(b, errtest.Of(allLabels.Pod(data)))
	}
}
