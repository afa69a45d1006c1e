package kube

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/kube/policyfeed"
	"github.com/kubeveil/kubeveil/pkg/policy"
	"github.com/kubeveil/kubeveil/pkg/policy/planner"
)

func wide(namespace, name string, rules int) m {
	all := make([]m, rules)
	for i := range all {
		all[i] = m{}
	}
	return m{"metadata": m{"namespace": namespace, "name": name, "uid": name},
		"spec": m{"podSelector": m{}, "policyTypes": []string{"Ingress"}, "ingress": all}}
}

// Policies beyond the bound of their namespace deny all traffic. They are in force again when
// others are deleted. Other namespaces are not affected.
func TestPoliciesOfANamespaceAreBounded(t *testing.T) {
	for _, noStream := range []bool{false, true} {
		t.Run(fmt.Sprintf("noStream %t", noStream), func(t *testing.T) {
			f := newFakeServer(t)
			f.noStream = noStream
			const each, fit = 30_000, policyfeed.MaxPolicies / 30_000
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
			nettest.Until(t, 10*time.Second, "problems", func() bool {
				problems := strings.Join(c.Problems(), "\n")
				return strings.Count(problems, "largest policies are ignored") == 2 &&
					strings.Contains(problems, "NetworkPolicy evil/p00: ")
			})

			wantNoDifference(t, c, sink)

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
			nettest.Until(t, 10*time.Second, "no problem", func() bool {
				return len(c.Problems()) == 0
			})
		})
	}
}

// wantNoDifference checks that a list has the revisions that were passed on. Otherwise a caller
// that waits until both are equal would wait forever.
func wantNoDifference(t *testing.T, c *Client, sink *policyTale) {
	t.Helper()
	listed, err := c.ListPolicies(t.Context())
	p := planner.New("node-1")
	sink.do(func() {
		for _, v := range sink.policies {
			p.PutPolicy(v)
		}
		for _, v := range sink.cluster {
			p.PutClusterPolicy(v)
		}
	})
	if differ := p.Compare(listed, ""); err != nil || len(differ) > 0 {
		t.Errorf("a list of %d policies differs: %q, error %v", len(listed), differ, err)
	}
}

// One policy that denies everything replaces all policies of a namespace with too many. They return
// when enough were deleted. Other namespaces are not affected.
func TestNamespaceWithTooManyPoliciesIsDenied(t *testing.T) {
	for _, noStream := range []bool{false, true} {
		t.Run(fmt.Sprintf("noStream %t", noStream), func(t *testing.T) {
			f := newFakeServer(t)
			f.noStream = noStream
			for i := range policyfeed.MaxCount + 1 {
				f.put(networkPoliciesPath, wide("evil", fmt.Sprint("p", i), 0))
			}
			f.put(networkPoliciesPath, wide("good", "good", 1))
			c, sink := startPolicies(t, f)
			replaced := func() bool {
				p, is := sink.policies[policy.Name{Namespace: "evil", Name: policy.AllOfNamespace}]
				return is && p.Isolates == [2]bool{true, true} && p.Invalid != "" &&
					len(sink.policies) == 2
			}
			sink.wait(t, "one policy replaces all", replaced)
			nettest.Until(t, 10*time.Second, "a problem", func() bool {
				return strings.Contains(strings.Join(c.Problems(), "\n"),
					"NetworkPolicy evil/*: the namespace has more than")
			})
			wantNoDifference(t, c, sink)

			f.remove(networkPoliciesPath, "p7")
			sink.wait(t, "all policies are back", func() bool {
				return !replaced() && len(sink.policies) == policyfeed.MaxCount+1
			})
			wantNoDifference(t, c, sink)
			f.put(networkPoliciesPath, wide("evil", "another", 0))
			sink.wait(t, "one more by a watch", replaced)
			f.remove(networkPoliciesPath, "another")
			sink.wait(t, "all policies are back again", func() bool {
				return !replaced() && len(sink.policies) == policyfeed.MaxCount+1
			})
			nettest.Until(t, 10*time.Second, "no problem", func() bool {
				return len(c.Problems()) == 0
			})
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
	const large = policyfeed.MaxPods/(200-policyfeed.FreePod) + 2
	for i := range large {
		p := podObject(fmt.Sprintf("p%03d", i), "node-2", "Running", "198.18.2.1")
		p["metadata"].(m)["labels"] = labels(200)
		f.put(podsPath, p)
	}
	small := podObject("small", "node-2", "Running", "198.18.2.2")
	small["metadata"].(m)["labels"] = labels(policyfeed.FreePod)
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
	if p := sink.pods[policy.Name{Namespace: "shop", Name: "small"}]; len(p.Labels) !=
		policyfeed.FreePod {
		t.Errorf("%d labels of the small pod", len(p.Labels))
	}
	for i := range 10 {
		f.remove(podsPath, fmt.Sprintf("p%03d", 100+i))
	}
	sink.wait(t, "labels of all pods", func() bool { return excess() == 0 })
}
