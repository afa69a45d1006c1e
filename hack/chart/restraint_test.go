package chart

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/kubeveil/kubeveil/e2e/lab/labhost"
	"github.com/kubeveil/kubeveil/internal/errtest"
)

// checkRestrained checks that each policy in whole is in force that restrains a write which a role
// permits. A daemon of node-1 cannot write another VeilNode. If all objects are there, each policy
// restrains such a write.
func (s *server) checkRestrained(t *testing.T, whole string, n int, all bool) {
	t.Helper()
	granted := s.granted(t)
	bound := map[string]bool{}
	bindings, err := s.admin.Kubernetes.AdmissionregistrationV1().
		ValidatingAdmissionPolicyBindings().List(t.Context(), metav1.ListOptions{})
	errtest.Must(t, err)
	for _, b := range bindings.Items {
		bound[b.Spec.PolicyName] = slices.Contains(b.Spec.ValidationActions, admissionv1.Deny)
	}
	policies, err := s.admin.Kubernetes.AdmissionregistrationV1().
		ValidatingAdmissionPolicies().List(t.Context(), metav1.ListOptions{})
	errtest.Must(t, err)
	there := map[string]bool{}
	for _, p := range policies.Items {
		there[p.Name] = bound[p.Name]
	}

	for _, p := range policiesIn(t, whole) {
		permitted := 0
		for _, w := range restrained(p) {
			for account, by := range granted[w.resource] {
				if w.account != "" && w.account != account {
					continue
				}
				permitted++
				if !there[p.Name] {
					t.Errorf("after %d writes: %s permits %s to write %s, and the policy %s is not "+
						"there", n, by, account, w.resource, p.Name)
				}
			}
		}
		if all && permitted == 0 {
			t.Errorf("no role permits what the policy %s restrains", p.Name)
		}
	}
	// A policy is in force a moment after its binding.
	errtest.Must(t, labhost.Until(t.Context(), 10*time.Second, func() error {
		err := s.writeAsDaemon(t.Context(), "node-2")
		if apierrors.IsForbidden(err) || apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("after %d writes the daemon of node-1 writes another VeilNode: %w", n,
			errors.Join(err, errors.New("want a refusal")))
	}))
}

// granted returns which accounts may write a resource by Kubeveil's bindings of roles, with one
// binding.
func (s *server) granted(t *testing.T) map[string]map[string]string {
	t.Helper()
	c, ctx := s.admin.Kubernetes.RbacV1(), t.Context()
	ours := metav1.ListOptions{LabelSelector: "app.kubernetes.io/part-of=kubeveil"}
	rules := map[rbacv1.RoleRef][]rbacv1.PolicyRule{}
	add := func(kind, name string, r []rbacv1.PolicyRule) {
		rules[rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: kind, Name: name}] = r
	}
	clusterRoles, err := c.ClusterRoles().List(ctx, metav1.ListOptions{})
	errtest.Must(t, err)
	for _, r := range clusterRoles.Items {
		add("ClusterRole", r.Name, r.Rules)
	}
	roles, err := c.Roles("").List(ctx, metav1.ListOptions{})
	errtest.Must(t, err)
	for _, r := range roles.Items {
		add("Role", r.Name, r.Rules)
	}

	type binding struct {
		role     rbacv1.RoleRef
		subjects []rbacv1.Subject
	}
	all := map[string]binding{}
	clusterBindings, err := c.ClusterRoleBindings().List(ctx, ours)
	errtest.Must(t, err)
	for _, b := range clusterBindings.Items {
		all["ClusterRoleBinding "+b.Name] = binding{b.RoleRef, b.Subjects}
	}
	bindings, err := c.RoleBindings("").List(ctx, ours)
	errtest.Must(t, err)
	for _, b := range bindings.Items {
		all["RoleBinding "+b.Name] = binding{b.RoleRef, b.Subjects}
	}

	granted := map[string]map[string]string{}
	for name, b := range all {
		for _, r := range rules[b.role] {
			if !slices.ContainsFunc(r.Verbs, func(verb string) bool {
				return !slices.Contains([]string{"get", "list", "watch"}, verb)
			}) {
				continue
			}
			for _, group := range r.APIGroups {
				for _, resource := range r.Resources {
					by := granted[group+"/"+resource]
					if by == nil {
						by = map[string]string{}
						granted[group+"/"+resource] = by
					}
					for _, subject := range b.subjects {
						by[subject.Name] = name
					}
				}
			}
		}
	}
	return granted
}

// policiesIn returns the admission policies in a text of objects.
func policiesIn(t *testing.T, text string) (all []admissionv1.ValidatingAdmissionPolicy) {
	t.Helper()
	for part := range strings.SplitSeq("\n"+text, "\n---\n") {
		var p admissionv1.ValidatingAdmissionPolicy
		var kind metav1.TypeMeta
		errtest.Must(t, yaml.Unmarshal([]byte(part), &kind))
		if kind.Kind == "ValidatingAdmissionPolicy" {
			errtest.Must(t, yaml.Unmarshal([]byte(part), &p))
			all = append(all, p)
		}
	}
	if len(all) == 0 {
		t.Fatal("the text has no policy")
	}
	return all
}

// write is a write of a resource by an account. An empty account means all.
type write struct{ account, resource string }

// anAccount matches the accounts in a condition of a policy.
var anAccount = regexp.MustCompile(`'system:serviceaccount:kube-system:([a-z-]+)'`)

// restrained returns the writes that a policy restrains.
func restrained(p admissionv1.ValidatingAdmissionPolicy) (writes []write) {
	accounts := []string{}
	for _, c := range p.Spec.MatchConditions {
		for _, m := range anAccount.FindAllStringSubmatch(c.Expression, -1) {
			accounts = append(accounts, m[1])
		}
	}
	if len(accounts) == 0 {
		accounts = []string{""}
	}
	for _, r := range p.Spec.MatchConstraints.ResourceRules {
		for _, group := range r.APIGroups {
			for _, resource := range r.Resources {
				for _, a := range accounts {
					writes = append(writes, write{a, group + "/" + resource})
				}
			}
		}
	}
	return writes
}
