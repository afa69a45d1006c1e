package policyfeed

import (
	"encoding/json"
	"fmt"
	"maps"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/pkg/kube/feed"
	"github.com/kubeveil/kubeveil/pkg/kube/kubetest"
	"github.com/kubeveil/kubeveil/pkg/kube/object"
	"github.com/kubeveil/kubeveil/pkg/policy"
)

type m = map[string]any

// readKind returns the read of a kind in protobuf.
func readKind[T any](parse func(*object.Object) feed.Parsed[T]) func([]byte) (any, string, error) {
	return func(message []byte) (any, string, error) {
		o, _, err := object.FromProtobuf(message)
		if err != nil {
			return nil, "", err
		}
		p := parse(o)
		return p, p.Problem, nil
	}
}

func swollenPolicies(t *testing.T) map[string]kubetest.Swollen {
	all := map[string]kubetest.Swollen{}
	read := readKind(parseNetworkPolicy)
	spec := func(name string, of func(n int) networkingv1.NetworkPolicySpec) {
		all["NetworkPolicy, "+name] = kubetest.Grow(t, func(n int) ([]byte, error) {
			return kubetest.Protobuf("networking.k8s.io/v1", "NetworkPolicy",
				&networkingv1.NetworkPolicy{Spec: of(n),
					ObjectMeta: metav1.ObjectMeta{Namespace: "evil", Name: "large"}})
		}, read)
	}
	rule := func(name string, of func(n int) networkingv1.NetworkPolicyIngressRule) {
		spec(name, func(n int) (s networkingv1.NetworkPolicySpec) {
			s.Ingress = []networkingv1.NetworkPolicyIngressRule{of(n)}
			return s
		})
	}
	selector := func(n int) (s metav1.LabelSelector) {
		s.MatchExpressions = []metav1.LabelSelectorRequirement{{Key: "a",
			Operator: metav1.LabelSelectorOpIn, Values: kubetest.Numbered(n)}}
		return s
	}

	spec("rules of ingress", func(n int) (s networkingv1.NetworkPolicySpec) {
		s.Ingress = make([]networkingv1.NetworkPolicyIngressRule, n)
		return s
	})
	spec("rules of egress", func(n int) (s networkingv1.NetworkPolicySpec) {
		s.Egress = make([]networkingv1.NetworkPolicyEgressRule, n)
		return s
	})
	spec("policyTypes", func(n int) (s networkingv1.NetworkPolicySpec) {
		s.PolicyTypes = kubetest.Repeat(n, func(int) networkingv1.PolicyType { return "Ingress" })
		return s
	})
	spec("labels of podSelector", func(n int) (s networkingv1.NetworkPolicySpec) {
		s.PodSelector.MatchLabels = kubetest.ManyLabels(n).Labels
		return s
	})
	spec("values of podSelector", func(n int) (s networkingv1.NetworkPolicySpec) {
		s.PodSelector = selector(n)
		return s
	})
	rule("ports", func(n int) (r networkingv1.NetworkPolicyIngressRule) {
		r.Ports = make([]networkingv1.NetworkPolicyPort, n)
		return r
	})
	rule("empty peers", func(n int) (r networkingv1.NetworkPolicyIngressRule) {
		r.From = kubetest.Repeat(n, func(int) networkingv1.NetworkPolicyPeer {
			return networkingv1.NetworkPolicyPeer{PodSelector: &metav1.LabelSelector{}}
		})
		return r
	})
	rule("exceptions", func(n int) (r networkingv1.NetworkPolicyIngressRule) {
		r.From = []networkingv1.NetworkPolicyPeer{{IPBlock: &networkingv1.IPBlock{
			CIDR: "198.18.0.0/15", Except: kubetest.Repeat(n, func(int) string {
				return "198.18.0.0/24"
			})}}}
		return r
	})
	rule("values of a peer", func(n int) (r networkingv1.NetworkPolicyIngressRule) {
		s := selector(n)
		r.From = []networkingv1.NetworkPolicyPeer{{NamespaceSelector: &s}}
		return r
	})
	rule("labels of a peer", func(n int) (r networkingv1.NetworkPolicyIngressRule) {
		r.From = []networkingv1.NetworkPolicyPeer{{PodSelector: &metav1.LabelSelector{
			MatchLabels: kubetest.ManyLabels(n).Labels}}}
		return r
	})
	rule("one long value", func(n int) (r networkingv1.NetworkPolicyIngressRule) {
		s := selector(1)
		s.MatchExpressions[0].Values[0] = strings.Repeat("x", n*20)
		r.From = []networkingv1.NetworkPolicyPeer{{NamespaceSelector: &s}}
		return r
	})
	rule("requirements of a peer", func(n int) (r networkingv1.NetworkPolicyIngressRule) {
		r.From = []networkingv1.NetworkPolicyPeer{{PodSelector: &metav1.LabelSelector{
			MatchExpressions: kubetest.Repeat(n, func(i int) metav1.LabelSelectorRequirement {
				return metav1.LabelSelectorRequirement{Key: "a",
					Operator: metav1.LabelSelectorOpExists}
			})}}}
		return r
	})
	return all
}

func swollenPods(t *testing.T) map[string]kubetest.Swollen {
	all := map[string]kubetest.Swollen{}
	pod := func(name string, of func(n int) corev1.Pod) {
		all["Pod, "+name] = kubetest.Grow(t, func(n int) ([]byte, error) {
			p := of(n)
			return kubetest.Protobuf("v1", "Pod", &p)
		}, readKind(func(o *object.Object) feed.Parsed[policy.Pod] {
			return parsePod(o, "node-1")
		}))
	}

	pod("labels", func(n int) corev1.Pod { return corev1.Pod{ObjectMeta: kubetest.ManyLabels(n)} })
	pod("named ports", func(n int) (p corev1.Pod) {
		ports := kubetest.Repeat(n, func(i int) corev1.ContainerPort {
			return corev1.ContainerPort{Name: fmt.Sprint("p", i), ContainerPort: 1}
		})
		p.Spec.Containers = []corev1.Container{{Ports: ports}}
		return p
	})
	pod("containers", func(n int) (p corev1.Pod) {
		p.Spec.Containers = kubetest.Repeat(n, func(i int) corev1.Container {
			return corev1.Container{Ports: []corev1.ContainerPort{{Name: "p", ContainerPort: 1}}}
		})
		return p
	})
	pod("podIPs", func(n int) (p corev1.Pod) {
		p.Status.PodIPs = kubetest.Repeat(n, func(int) corev1.PodIP {
			return corev1.PodIP{IP: "::1"}
		})
		return p
	})

	all["Namespace, labels"] = kubetest.Grow(t, func(n int) ([]byte, error) {
		return kubetest.Protobuf("v1", "Namespace",
			&corev1.Namespace{ObjectMeta: kubetest.ManyLabels(n)})
	}, readKind(parseNamespace))
	return all
}

func swollenClusterPolicies(t *testing.T) map[string]kubetest.Swollen {
	all := map[string]kubetest.Swollen{}
	spec := func(name string, of func(n int) m) {
		all["ClusterNetworkPolicy, "+name] = kubetest.Grow(t, func(n int) ([]byte, error) {
			s := of(n)
			s["tier"] = "Admin"
			return json.Marshal(m{"spec": s})
		}, func(message []byte) (any, string, error) {
			var o object.Object
			err := json.Unmarshal(message, &o)
			p := parseClusterPolicy(&o)
			return p, p.Problem, err
		})
	}

	everyone := m{"namespaces": m{}}
	spec("rules", func(n int) m {
		return m{"subject": everyone, "ingress": kubetest.Repeat(n, func(int) m { return m{} })}
	})
	spec("peers", func(n int) m {
		return m{"subject": everyone, "ingress": []m{{"action": "Accept",
			"from": kubetest.Repeat(n, func(int) m { return everyone })}}}
	})
	spec("protocols", func(n int) m {
		return m{"subject": everyone, "ingress": []m{{"action": "Accept", "from": []m{everyone},
			"protocols": kubetest.Repeat(n, func(int) m { return m{"tcp": m{}} })}}}
	})
	spec("networks", func(n int) m {
		return m{"subject": everyone, "egress": []m{{"action": "Accept", "to": []m{{
			"networks": kubetest.Repeat(n, func(int) string { return "::/0" })}}}}}
	})
	spec("labels of the subject", func(n int) m {
		return m{"subject": m{"namespaces": m{"matchLabels": kubetest.ManyLabels(n).Labels}},
			"ingress": []m{{"action": "Accept", "from": []m{everyone}}}}
	})
	return all
}

// One object of the largest size that etcd accepts denies what it isolates, and costs this process
// little.
func TestLargeObjectIsCountedWhileItIsRead(t *testing.T) {
	all := swollenPolicies(t)
	maps.Copy(all, swollenPods(t))
	maps.Copy(all, swollenClusterPolicies(t))
	kubetest.Check(t, all)
}

// Subjects and directions of a ClusterNetworkPolicy that is too large can still be read.
func TestLargeClusterPolicyDeniesItsSubjectsInItsDirections(t *testing.T) {
	networks := kubetest.Repeat(object.MaxPartJSON/4, func(int) string { return "::/0" })
	spec, err := json.Marshal(m{"tier": "Baseline", "priority": 7,
		"subject": m{"namespaces": m{"matchLabels": m{"team": "a"}}}, "ingress": []m{},
		"egress": []m{{"action": "Accept", "to": []m{{"networks": networks}}}}})
	errtest.Must(t, err)
	p := parseCluster(t, string(spec)).Value
	if p.Denies != [2]bool{policy.Egress: true} || p.Tier != policy.Baseline || p.Priority != 7 ||
		!p.Namespaces.Matches(map[string]string{"team": "a"}) || p.Namespaces.Matches(nil) ||
		!strings.Contains(p.Invalid, "bytes") {
		t.Errorf("denies %v, tier %s, priority %d, %q", p.Denies, p.Tier, p.Priority, p.Invalid)
	}
}
