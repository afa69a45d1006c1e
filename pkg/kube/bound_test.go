package kube

import (
	"encoding/json"
	"fmt"
	"maps"
	"runtime"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubeveil/kubeveil/pkg/policy"
	"github.com/kubeveil/kubeveil/pkg/wgkey"
)

// largest is the largest size of one object that etcd accepts.
const largest = 3 << 19

// swollen is an object that is large by one repeated field.
type swollen struct {
	message []byte
	// read returns what is kept of the message, and the problem.
	read func(message []byte) (kept any, problem string, err error)
}

// readWired returns the read of a kind in protobuf.
func readWired[K wireKind, T any](parse func(*object) parsed[T]) func([]byte) (any, string, error) {
	return func(message []byte) (any, string, error) {
		var o wired[K]
		err := o.Unmarshal(message)
		p := parse(&o.object)
		return p, p.problem, err
	}
}

// grow returns the message of the largest object that etcd takes: object returns one with n entries
// of the field, whose size is linear in n.
func grow(t *testing.T, object func(n int) ([]byte, error)) []byte {
	t.Helper()
	few, err := object(1000)
	if err != nil {
		t.Fatal(err)
	}
	message, err := object(1000 * largest / len(few) * 95 / 100)
	if err != nil || len(message) < largest/2 {
		t.Fatalf("%d bytes, %v", len(message), err)
	}
	return message
}

func repeat[T any](n int, v func(i int) T) []T {
	out := make([]T, n)
	for i := range out {
		out[i] = v(i)
	}
	return out
}

func numbered(n int) []string { return repeat(n, func(i int) string { return fmt.Sprint("v", i) }) }

func manyLabels(n int) metav1.ObjectMeta {
	o := metav1.ObjectMeta{Namespace: "evil", Name: "large", UID: "u", Labels: map[string]string{}}
	for _, key := range numbered(n) {
		o.Labels[key] = "x"
	}
	return o
}

func swollenPolicies(t *testing.T) map[string]swollen {
	all := map[string]swollen{}
	read := readWired[networkPolicyWire](parseNetworkPolicy)
	spec := func(name string, of func(n int) networkingv1.NetworkPolicySpec) {
		all["NetworkPolicy, "+name] = swollen{grow(t, func(n int) ([]byte, error) {
			np := networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "evil",
				Name: "large"}, Spec: of(n)}
			return np.Marshal()
		}), read}
	}
	rule := func(name string, of func(n int) networkingv1.NetworkPolicyIngressRule) {
		spec(name, func(n int) (s networkingv1.NetworkPolicySpec) {
			s.Ingress = []networkingv1.NetworkPolicyIngressRule{of(n)}
			return s
		})
	}
	selector := func(n int) (s metav1.LabelSelector) {
		s.MatchExpressions = []metav1.LabelSelectorRequirement{{Key: "a",
			Operator: metav1.LabelSelectorOpIn, Values: numbered(n)}}
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
		s.PolicyTypes = repeat(n, func(int) networkingv1.PolicyType { return "Ingress" })
		return s
	})
	spec("labels of podSelector", func(n int) (s networkingv1.NetworkPolicySpec) {
		s.PodSelector.MatchLabels = manyLabels(n).Labels
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
		r.From = repeat(n, func(int) networkingv1.NetworkPolicyPeer {
			return networkingv1.NetworkPolicyPeer{PodSelector: &metav1.LabelSelector{}}
		})
		return r
	})
	rule("exceptions", func(n int) (r networkingv1.NetworkPolicyIngressRule) {
		r.From = []networkingv1.NetworkPolicyPeer{{IPBlock: &networkingv1.IPBlock{
			CIDR: "198.18.0.0/15", Except: repeat(n, func(int) string { return "198.18.0.0/24" })}}}
		return r
	})
	rule("values of a peer", func(n int) (r networkingv1.NetworkPolicyIngressRule) {
		s := selector(n)
		r.From = []networkingv1.NetworkPolicyPeer{{NamespaceSelector: &s}}
		return r
	})
	rule("labels of a peer", func(n int) (r networkingv1.NetworkPolicyIngressRule) {
		r.From = []networkingv1.NetworkPolicyPeer{{PodSelector: &metav1.LabelSelector{
			MatchLabels: manyLabels(n).Labels}}}
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
			MatchExpressions: repeat(n, func(i int) metav1.LabelSelectorRequirement {
				return metav1.LabelSelectorRequirement{Key: "a",
					Operator: metav1.LabelSelectorOpExists}
			})}}}
		return r
	})
	return all
}

func swollenObjects(t *testing.T) map[string]swollen {
	all := map[string]swollen{}
	pod := func(name string, of func(n int) corev1.Pod) {
		all["Pod, "+name] = swollen{grow(t, func(n int) ([]byte, error) {
			p := of(n)
			return p.Marshal()
		}), readWired[podWire](func(o *object) parsed[policy.Pod] { return parsePod(o, "node-1") })}
	}
	pod("labels", func(n int) corev1.Pod { return corev1.Pod{ObjectMeta: manyLabels(n)} })
	pod("named ports", func(n int) (p corev1.Pod) {
		p.Spec.Containers = []corev1.Container{{Ports: repeat(n, func(i int) corev1.ContainerPort {
			return corev1.ContainerPort{Name: fmt.Sprint("p", i), ContainerPort: 1}
		})}}
		return p
	})
	pod("containers", func(n int) (p corev1.Pod) {
		p.Spec.Containers = repeat(n, func(i int) corev1.Container {
			return corev1.Container{Ports: []corev1.ContainerPort{{Name: "p", ContainerPort: 1}}}
		})
		return p
	})
	pod("podIPs", func(n int) (p corev1.Pod) {
		p.Status.PodIPs = repeat(n, func(int) corev1.PodIP { return corev1.PodIP{IP: "::1"} })
		return p
	})

	node := func(name string, of func(n int) corev1.Node) {
		all["Node, "+name] = swollen{grow(t, func(n int) ([]byte, error) {
			node := of(n)
			return node.Marshal()
		}), func(message []byte) (any, string, error) {
			var o object
			err := o.Unmarshal(message)
			e := parseNode(&o)
			return e, e.problem, err
		}}
	}
	node("labels", func(n int) corev1.Node { return corev1.Node{ObjectMeta: manyLabels(n)} })
	node("podCIDRs", func(n int) (node corev1.Node) {
		node.Spec.PodCIDRs = repeat(n, func(int) string { return "198.18.0.0/24" })
		return node
	})
	node("addresses", func(n int) (node corev1.Node) {
		node.Status.Addresses = repeat(n, func(i int) corev1.NodeAddress {
			return corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: "198.18.0.1"}
		})
		return node
	})
	maps.Copy(all, swollenJSON(t))
	maps.Copy(all, swollenServices(t))
	all["Namespace, labels"] = swollen{grow(t, func(n int) ([]byte, error) {
		ns := corev1.Namespace{ObjectMeta: manyLabels(n)}
		return ns.Marshal()
	}), readWired[namespaceWire](parseNamespace)}
	return all
}

func swollenServices(t *testing.T) map[string]swollen {
	all := map[string]swollen{}
	add := func(name string, of func(s *corev1.Service, n int)) {
		all["Service, "+name] = swollen{grow(t, func(n int) ([]byte, error) {
			s := corev1.Service{Spec: corev1.ServiceSpec{ClusterIP: "198.18.128.1"}}
			of(&s, n)
			return s.Marshal()
		}), readWired[serviceWire](parseService)}
	}
	add("ports", func(s *corev1.Service, n int) { s.Spec.Ports = make([]corev1.ServicePort, n) })
	add("clusterIPs", func(s *corev1.Service, n int) { s.Spec.ClusterIPs = numbered(n) })
	add("externalIPs", func(s *corev1.Service, n int) { s.Spec.ExternalIPs = numbered(n) })
	add("ranges", func(s *corev1.Service, n int) {
		s.Spec.LoadBalancerSourceRanges = numbered(n)
	})
	add("ingress", func(s *corev1.Service, n int) {
		s.Status.LoadBalancer.Ingress = make([]corev1.LoadBalancerIngress, n)
	})

	slice := func(name string, of func(s *discoveryv1.EndpointSlice, n int)) {
		all["EndpointSlice, "+name] = swollen{grow(t, func(n int) ([]byte, error) {
			s := discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{
				Labels: map[string]string{serviceNameLabel: "web"}}, AddressType: "IPv4"}
			of(&s, n)
			return s.Marshal()
		}), readWired[sliceWire](parseEndpoints)}
	}
	slice("ports", func(s *discoveryv1.EndpointSlice, n int) {
		s.Ports = make([]discoveryv1.EndpointPort, n)
	})
	slice("endpoints", func(s *discoveryv1.EndpointSlice, n int) {
		s.Endpoints = repeat(n, func(int) discoveryv1.Endpoint {
			return discoveryv1.Endpoint{Addresses: []string{"198.18.1.1"}}
		})
	})
	return all
}

// swollenJSON returns objects of the kinds that have no other form than JSON.
func swollenJSON(t *testing.T) map[string]swollen {
	all := map[string]swollen{}
	add := func(name string, parse func(*object) (any, string), of func(n int) m) {
		all[name] = swollen{grow(t, func(n int) ([]byte, error) { return json.Marshal(of(n)) }),
			func(message []byte) (any, string, error) {
				var o object
				err := json.Unmarshal(message, &o)
				kept, problem := parse(&o)
				return kept, problem, err
			}}
	}
	veilNode := func(o *object) (any, string) {
		e := parseVeilNode(o)
		return e, e.problem
	}
	clusterPolicy := func(o *object) (any, string) {
		p := parseClusterPolicy(o)
		return p, p.problem
	}

	claim := m{"keys": []m{{"epoch": 1, "publicKey": wgkey.Public{1}.String()}}}
	add("VeilNode, features", veilNode, func(n int) m {
		return m{"spec": m{"keys": claim["keys"], "features": numbered(n)}}
	})
	add("VeilNode, keys", veilNode, func(n int) m {
		return m{"spec": m{"keys": repeat(n, func(i int) m { return m{"epoch": i} })}}
	})
	add("VeilNode, labels", veilNode, func(n int) m {
		return m{"metadata": m{"labels": manyLabels(n).Labels}, "spec": claim}
	})
	add("VeilNode, owners", veilNode, func(n int) m {
		return m{"metadata": m{"ownerReferences": repeat(n, func(i int) m {
			return m{"uid": fmt.Sprint(i)}
		})}, "spec": claim}
	})
	spec := func(name string, of func(n int) m) {
		add("ClusterNetworkPolicy, "+name, clusterPolicy, func(n int) m {
			s := of(n)
			s["tier"] = "Admin"
			return m{"spec": s}
		})
	}
	everyone := m{"namespaces": m{}}
	spec("rules", func(n int) m {
		return m{"subject": everyone, "ingress": repeat(n, func(int) m { return m{} })}
	})
	spec("peers", func(n int) m {
		return m{"subject": everyone, "ingress": []m{{"action": "Accept",
			"from": repeat(n, func(int) m { return everyone })}}}
	})
	spec("protocols", func(n int) m {
		return m{"subject": everyone, "ingress": []m{{"action": "Accept", "from": []m{everyone},
			"protocols": repeat(n, func(int) m { return m{"tcp": m{}} })}}}
	})
	spec("networks", func(n int) m {
		return m{"subject": everyone, "egress": []m{{"action": "Accept", "to": []m{{
			"networks": repeat(n, func(int) string { return "::/0" })}}}}}
	})
	spec("labels of the subject", func(n int) m {
		return m{"subject": m{"namespaces": m{"matchLabels": manyLabels(n).Labels}},
			"ingress": []m{{"action": "Accept", "from": []m{everyone}}}}
	})
	return all
}

// One object of the largest size that etcd accepts denies what it isolates, and costs this process
// little. Neither the memory that is kept nor the memory that is allocated while it is read is a
// multiple of the object.
func TestLargeObjectIsCountedWhileItIsRead(t *testing.T) {
	all := swollenPolicies(t)
	maps.Copy(all, swollenObjects(t))
	for name, s := range all {
		t.Run(name, func(t *testing.T) {
			before := memory()
			kept, problem, err := s.read(s.message)
			after := memory()
			if err != nil || problem == "" {
				t.Errorf("problem %q, %v", problem, err)
			}
			allocated := after.TotalAlloc - before.TotalAlloc
			held := int64(after.HeapAlloc) - int64(before.HeapAlloc)
			t.Logf("%d kB: %d kB allocated, %d kB kept", len(s.message)>>10, allocated>>10,
				held>>10)
			if allocated > mayAllocate || held > mayKeep {
				t.Errorf("%d bytes allocated, %d kept; want at most %d, %d", allocated, held,
					mayAllocate, mayKeep)
			}
			runtime.KeepAlive(kept)
		})
	}
}

const (
	mayAllocate = 12 << 20
	mayKeep     = 64 << 10
)

// memory collects garbage and returns what is left.
func memory() (m runtime.MemStats) {
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&m)
	return m
}

// Subjects and directions of a ClusterNetworkPolicy that is too large can still be read.
func TestLargeClusterPolicyDeniesItsSubjectsInItsDirections(t *testing.T) {
	networks := repeat(maxPartJSON/4, func(int) string { return "::/0" })
	spec, err := json.Marshal(m{"tier": "Baseline", "priority": 7,
		"subject": m{"namespaces": m{"matchLabels": m{"team": "a"}}}, "ingress": []m{},
		"egress": []m{{"action": "Accept", "to": []m{{"networks": networks}}}}})
	if err != nil {
		t.Fatal(err)
	}
	p := parseCluster(t, string(spec)).value
	if p.Denies != [2]bool{policy.Egress: true} || p.Tier != policy.Baseline || p.Priority != 7 ||
		!p.Namespaces.Matches(map[string]string{"team": "a"}) || p.Namespaces.Matches(nil) ||
		!strings.Contains(p.Invalid, "bytes") {
		t.Errorf("denies %v, tier %s, priority %d, %q", p.Denies, p.Tier, p.Priority, p.Invalid)
	}
}
