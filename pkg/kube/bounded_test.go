package kube

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubeveil/kubeveil/pkg/policy"
)

// Which objects are dropped depends on the objects alone: each node drops the same.
func TestLargestObjectsOfANamespaceAreDropped(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	var want map[string]bool
	for range 50 {
		a := newAllowance(100)
		dropped := map[string]bool{}
		put := func(namespace, name string, elements int) {
			drop, restore := a.put(namespace, name, sized{elements: elements})
			for _, n := range drop {
				dropped[namespace+"/"+n] = true
			}
			for _, n := range restore {
				delete(dropped, namespace+"/"+n)
			}
			if elements == 0 {
				delete(dropped, namespace+"/"+name)
			}
		}
		for _, i := range r.Perm(40) {
			put("evil", fmt.Sprint("a", i), i%7)
			put("gone", fmt.Sprint("a", i), 100)
			put("good", fmt.Sprint("a", i), i%3)
		}
		for _, i := range r.Perm(40) {
			put("gone", fmt.Sprint("a", i), 0)
		}
		if want == nil {
			want = dropped
		}
		if !maps.Equal(want, dropped) || len(a.spaces) != 2 {
			t.Fatalf("%d namespaces, dropped %v and %v", len(a.spaces), want, dropped)
		}
	}

	// 6 + 5 + ... of 114 are 14 too many: three of the five with 6.
	if got := slices.Sorted(maps.Keys(want)); !slices.Equal(got,
		[]string{"evil/a13", "evil/a20", "evil/a27"}) {
		t.Errorf("dropped %v", got)
	}
}

func wide(namespace, name string, rules int) m {
	all := make([]m, rules)
	for i := range all {
		all[i] = m{}
	}
	return m{"metadata": m{"namespace": namespace, "name": name, "uid": name},
		"spec": m{"podSelector": m{}, "policyTypes": []string{"Ingress"}, "ingress": all}}
}

// The policies of a namespace beyond its bound deny, are in force again when others are gone, and
// cost no other namespace anything.
func TestPoliciesOfANamespaceAreBounded(t *testing.T) {
	for _, noStream := range []bool{false, true} {
		t.Run(fmt.Sprintf("noStream %t", noStream), func(t *testing.T) {
			f := newFakeServer(t)
			f.noStream = noStream
			const each, fit = 30_000, maxPolicies / 30_000
			f.put(networkPoliciesPath, wide("good", "good", each))
			f.put(networkPoliciesPath, wide("evil", "small", 10))
			for i := range fit + 2 {
				f.put(networkPoliciesPath, wide("evil", fmt.Sprintf("p%02d", i), each))
			}

			c, sink := startPolicies(t, f)
			denied := func() (names []string) {
				for n, p := range sink.policies {
					if p.Invalid != "" && len(p.Rules[policy.Ingress]) == 0 {
						names = append(names, n.Name)
					}
				}
				slices.Sort(names)
				return names
			}
			sink.wait(t, "the largest are dropped", func() bool {
				return len(sink.policies) == fit+4 && slices.Equal(denied(), []string{"p00", "p01"})
			})
			problems := strings.Join(c.Problems(), "\n")
			if n := strings.Count(problems, "largest policies are dropped"); n != 2 ||
				!strings.Contains(problems, "NetworkPolicy evil/p00: ") {
				t.Errorf("problems %s", problems)
			}

			f.put(networkPoliciesPath, wide("evil", "another", each))
			sink.wait(t, "one more by a watch", func() bool {
				return slices.Equal(denied(), []string{"another", "p00", "p01"})
			})
			f.remove(networkPoliciesPath, "another")
			f.remove(networkPoliciesPath, "p05")
			sink.wait(t, "one fits again", func() bool {
				return slices.Equal(denied(), []string{"p00"})
			})
			f.put(networkPoliciesPath, wide("evil", "p07", 1))
			sink.wait(t, "all fit", func() bool { return len(denied()) == 0 })
			name := policy.Name{Namespace: "evil", Name: "p00"}
			if got := len(sink.policies[name].Rules[policy.Ingress]); got != each {
				t.Errorf("%d rules are back, want %d", got, each)
			}
			if problems := c.Problems(); len(problems) > 0 {
				t.Errorf("problems %q", problems)
			}
		})
	}
}

func TestLabelsOfTheLargestPodsOfANamespaceAreDropped(t *testing.T) {
	f := newFakeServer(t)
	labels := func(n int) m {
		out := m{}
		for i := range n {
			out[fmt.Sprint("key", i)] = "x"
		}
		return out
	}
	const large = maxPods/(200-freePod) + 2
	for i := range large {
		p := podObject(fmt.Sprintf("p%03d", i), "node-2", "Running", "198.18.2.1")
		p["metadata"].(m)["labels"] = labels(200)
		f.put(podsPath, p)
	}
	small := podObject("small", "node-2", "Running", "198.18.2.2")
	small["metadata"].(m)["labels"] = labels(freePod)
	f.put(podsPath, small)

	_, sink := startPolicies(t, f)
	excess := func() (n int) {
		for _, p := range sink.pods {
			if p.Excess && p.Labels == nil {
				n++
			}
		}
		return n
	}
	sink.wait(t, "all pods", func() bool {
		return len(sink.pods) == large+1 && excess() > 0 && excess() < 10
	})
	if p := sink.pods[policy.Name{Namespace: "shop", Name: "small"}]; len(p.Labels) != freePod {
		t.Errorf("%d labels of the small pod", len(p.Labels))
	}
	for i := range 10 {
		f.remove(podsPath, fmt.Sprintf("p%03d", 100+i))
	}
	sink.wait(t, "labels of all pods", func() bool { return excess() == 0 })
}

// A list is bounded by what it has itself: not by what earlier lists had.
func TestEachListIsCountedAnew(t *testing.T) {
	f := newFakeServer(t)
	c, err := newClient(Options{Node: "node-1"}, f.config())
	if err != nil {
		t.Fatal(err)
	}
	feed := newFeed(c, "NetworkPolicy ", parseNetworkPolicy, nil, nil, nil, nil)
	feed.bound = boundedPolicies()
	list := c.lister(networkPolicyKind, feed)
	for round := range 2 {
		for i := range maxPolicies / 30_000 {
			f.remove(networkPoliciesPath, fmt.Sprint(round-1, "-", i))
			f.put(networkPoliciesPath, wide("evil", fmt.Sprint(round, "-", i), 30_000))
		}
		l, err := list(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for _, item := range l.(*wiredList[networkPolicyWire]).Items {
			if p := item.parsed.(parsed[policy.Policy]); p.value.Invalid != "" {
				t.Errorf("list %d: %s: %s", round, p.value.Name, p.value.Invalid)
			}
		}
	}
}
