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

// plainAllowance is an allowance that looks at all objects each time.
type plainAllowance struct {
	limit   int
	objects map[string]sized
}

// dropped returns the names that are dropped.
func (a plainAllowance) dropped() map[string]bool {
	sum, order := 0, []*counted{}
	for name, of := range a.objects {
		sum += of.elements
		order = append(order, &counted{sized: of, name: name})
	}
	slices.SortFunc(order, func(x, y *counted) int {
		if x.before(y) {
			return -1
		}
		return 1
	})
	out := map[string]bool{}
	for _, c := range order {
		if sum <= a.limit {
			break
		}
		out[c.name] = true
		sum -= c.elements
	}
	return out
}

// Objects come, change and go in any order: after each the same are dropped as if all were sorted.
func TestAllowanceDropsAsIfAllWereSorted(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for range 20 {
		a := newAllowance(60)
		plain := plainAllowance{60, map[string]sized{}}
		was := map[string]bool{}
		for range 300 {
			name, of := fmt.Sprint("o", r.IntN(30)), sized{elements: r.IntN(12)}
			drop, restore := a.put("shop", name, of)
			plain.objects[name] = of
			if of.elements == 0 {
				delete(plain.objects, name)
			}
			want := plain.dropped()
			if name := differs(want, drop, restore, was, plain.objects); name != "" {
				t.Fatalf("dropped %v, want %v, kept again %v; %s is wrong", drop, want, restore, name)
			}
			was = want
		}
	}
}

// differs returns an object whose change to want was missed or reported wrongly, or "".
func differs(want map[string]bool, drop, restore []string, was map[string]bool,
	objects map[string]sized) string {
	for _, name := range drop {
		if was[name] || !want[name] {
			return name
		}
	}
	for _, name := range restore {
		if !was[name] || want[name] {
			return name
		}
	}
	for name := range objects {
		if want[name] && !was[name] && !slices.Contains(drop, name) ||
			!want[name] && was[name] && !slices.Contains(restore, name) {
			return name
		}
	}
	return ""
}

// One namespace with many objects to read again holds up no other.
func TestNamespacesTakeTurnsToBeReadAgain(t *testing.T) {
	f := newFeed[policy.Policy](nil, "NetworkPolicy ", nil, nil, nil, nil, nil)
	f.bound = boundedPolicies()
	for i := range 100 {
		name := fmt.Sprint("p", i)
		f.told["evil/"+name] = policy.Policy{Invalid: largePolicy}
		f.wantLocked("evil", name)
	}
	for _, namespace := range []string{"a", "shop"} {
		f.told[namespace+"/one"] = policy.Policy{Invalid: largePolicy}
		f.wantLocked(namespace, "one")
	}
	var got []string
	for range 5 {
		namespace, _ := f.next()
		got = append(got, namespace)
	}
	if !slices.Equal(got, []string{"a", "evil", "shop", "evil", "evil"}) {
		t.Errorf("read again in the order %v", got)
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
