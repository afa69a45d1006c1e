package chart

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"github.com/kubeveil/kubeveil/e2e/lab/apiobject"
	"github.com/kubeveil/kubeveil/e2e/lab/labhost"
	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/filetest"
	"github.com/kubeveil/kubeveil/internal/nettest"
)

// Manifests and the chart on a real API server. Each part begins with what the former part left.
func TestInstallationOnAnAPIServer(t *testing.T) {
	s := newServer(t)
	before, err := s.admin.List(t.Context())
	errtest.Must(t, err)

	t.Run("an apply that is cut leaves no writer unrestrained", s.checkCutApply)
	t.Run("a second apply changes nothing", s.checkSecondApply)
	s.kubectl(t, "delete", "-f", s.network)
	if nettest.Long() {
		t.Run("an installation that is cut leaves no writer unrestrained", s.checkCutInstall)
	}
	t.Run("the restraint comes first", s.checkOrder)
	t.Run("an upgrade brings a new schema", s.checkUpgrade)
	t.Run("nothing is left", func(t *testing.T) { s.checkUninstall(t, before) })
}

// checkCutApply applies the manifests with 0, 1, 2 … writes until all are there.
func (s *server) checkCutApply(t *testing.T) {
	files := []string{s.network}
	if nettest.Long() {
		files = append(files, s.volumes)
	}
	for _, file := range files {
		apply := func() (string, error) {
			return s.try(t, s.kustomize.Command[0], "apply", "--server-side", "-f", file)
		}
		n := s.cutAfterEach(t, string(filetest.Read(t, file)), apply)
		t.Logf("%s: cut after 0 to %d writes", filepath.Base(file), n)
	}
	if err := s.writeAsDaemon(t.Context(), "node-2"); !refusedByPolicy(err) {
		t.Errorf("the daemon of node-1 wrote the VeilNode of node-2: %v", err)
	}
	errtest.Must(t, s.writeAsDaemon(t.Context(), "node-1"))
	if len(files) > 1 {
		s.removeVolumes(t)
	}
}

// cutAfterEach runs install with 0, 1, 2 … writes until it succeeds, and checks after each run that
// no writer is unrestrained. It returns the number of the last run. whole has all objects.
func (s *server) cutAfterEach(t *testing.T, whole string, install func() (string, error)) int {
	t.Helper()
	defer s.gate.cutAfter(-1)
	for n := 0; ; n++ {
		s.gate.cutAfter(n)
		out, err := install()
		s.checkRestrained(t, whole, n)
		if err == nil {
			return n
		}
		if n == 200 || t.Failed() {
			t.Fatalf("after %d writes: %v: %s", n, err, out)
		}
	}
}

// checkRestrained checks that each policy in whole is in force that restrains a write which a role
// permits. A daemon of node-1 cannot write another VeilNode.
func (s *server) checkRestrained(t *testing.T, whole string, n int) {
	t.Helper()
	granted := s.granted(t)
	bound := map[string]bool{}
	bindings, err := s.admin.Kubernetes.AdmissionregistrationV1().
		ValidatingAdmissionPolicyBindings().List(t.Context(), metav1.ListOptions{})
	errtest.Must(t, err)
	for _, b := range bindings.Items {
		bound[b.Spec.PolicyName] = true
	}
	policies, err := s.admin.Kubernetes.AdmissionregistrationV1().
		ValidatingAdmissionPolicies().List(t.Context(), metav1.ListOptions{})
	errtest.Must(t, err)
	there := map[string]bool{}
	for _, p := range policies.Items {
		there[p.Name] = bound[p.Name]
	}

	for _, p := range policiesIn(t, whole) {
		for _, resource := range restrained(p) {
			if by := granted[resource]; by != "" && !there[p.Name] {
				t.Errorf("after %d writes: %s permits writes of %s, and the policy %s is not there",
					n, by, resource, p.Name)
			}
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

// granted returns the resources that roles of Kubeveil permit to write, with the binding of one.
func (s *server) granted(t *testing.T) map[string]string {
	t.Helper()
	c, ctx := s.admin.Kubernetes.RbacV1(), t.Context()
	ours := metav1.ListOptions{LabelSelector: "app.kubernetes.io/part-of=kubeveil"}
	rules := map[rbacv1.RoleRef][]rbacv1.PolicyRule{}
	add := func(kind, name string, r []rbacv1.PolicyRule) {
		rules[rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: kind, Name: name}] = r
	}
	clusterRoles, err := c.ClusterRoles().List(ctx, ours)
	errtest.Must(t, err)
	for _, r := range clusterRoles.Items {
		add("ClusterRole", r.Name, r.Rules)
	}
	roles, err := c.Roles("").List(ctx, ours)
	errtest.Must(t, err)
	for _, r := range roles.Items {
		add("Role", r.Name, r.Rules)
	}

	refs := map[string]rbacv1.RoleRef{}
	clusterBindings, err := c.ClusterRoleBindings().List(ctx, ours)
	errtest.Must(t, err)
	for _, b := range clusterBindings.Items {
		refs["ClusterRoleBinding "+b.Name] = b.RoleRef
	}
	bindings, err := c.RoleBindings("").List(ctx, ours)
	errtest.Must(t, err)
	for _, b := range bindings.Items {
		refs["RoleBinding "+b.Name] = b.RoleRef
	}

	granted := map[string]string{}
	for binding, ref := range refs {
		for _, r := range rules[ref] {
			if !slices.ContainsFunc(r.Verbs, func(verb string) bool {
				return !slices.Contains([]string{"get", "list", "watch"}, verb)
			}) {
				continue
			}
			for _, group := range r.APIGroups {
				for _, resource := range r.Resources {
					granted[group+"/"+resource] = binding
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

// restrained returns the resources that a policy restrains.
func restrained(p admissionv1.ValidatingAdmissionPolicy) (resources []string) {
	for _, r := range p.Spec.MatchConstraints.ResourceRules {
		for _, group := range r.APIGroups {
			for _, resource := range r.Resources {
				resources = append(resources, group+"/"+resource)
			}
		}
	}
	return resources
}

var veilNodes = schema.GroupVersionResource{Group: "kubeveil.io", Version: "v1alpha1",
	Resource: "veilnodes"}

// writeAsDaemon tries to create a VeilNode as the daemon of node-1. The API server stores nothing.
func (s *server) writeAsDaemon(ctx context.Context, name string) error {
	c := rest.CopyConfig(s.config)
	c.Impersonate = rest.ImpersonationConfig{UserName: "system:serviceaccount:kube-system:veild",
		Extra: map[string][]string{"authentication.kubernetes.io/node-name": {"node-1"}}}
	client, err := dynamic.NewForConfig(c)
	if err != nil {
		return err
	}
	_, err = client.Resource(veilNodes).Create(ctx, veilNode(name, nil),
		metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	return err
}

// refusedByPolicy reports whether a policy refused the VeilNode of another node.
func refusedByPolicy(err error) bool {
	return apierrors.IsForbidden(err) && strings.Contains(err.Error(), "kubeveil-veilnode-own")
}

// veilNode returns a VeilNode that its Node owns, with more fields of its spec.
func veilNode(name string, more map[string]any) *unstructured.Unstructured {
	spec := map[string]any{"keys": []any{map[string]any{"epoch": int64(1),
		"publicKey": strings.Repeat("A", 43) + "="}}}
	for field, value := range more {
		spec[field] = value
	}
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "kubeveil.io/v1alpha1", "kind": "VeilNode", "spec": spec,
		"metadata": map[string]any{"name": name, "ownerReferences": []any{map[string]any{
			"apiVersion": "v1", "kind": "Node", "name": name, "uid": "1"}}}}}
}

// checkSecondApply checks that a second server-side apply of all objects changes none.
func (s *server) checkSecondApply(t *testing.T) {
	s.kubectl(t, "wait", "--for=condition=Established", "crd",
		"-l", "app.kubernetes.io/part-of=kubeveil")
	versions := func() string {
		return s.kubectl(t, "get", "-f", s.network, "-o", "jsonpath="+
			`{range .items[*]}{.kind} {.metadata.name} {.metadata.resourceVersion}{"\n"}{end}`)
	}
	before := versions()
	s.kubectl(t, "apply", "--server-side", "-f", s.network)
	if diff := cmp.Diff(before, versions()); diff != "" || strings.Count(before, "\n") < 10 {
		t.Errorf("the second apply (-before +after):\n%s\n%s", diff, before)
	}
}

// checkCutInstall installs the chart with 0, 1, 2 … writes until all objects are there.
func (s *server) checkCutInstall(t *testing.T) {
	whole, good := s.template(t)
	if !good {
		t.Fatal(whole)
	}
	n := s.cutAfterEach(t, whole, func() (string, error) {
		// Helm refuses to install a release whose record exists.
		err := s.admin.Kubernetes.CoreV1().Secrets("kube-system").DeleteCollection(t.Context(),
			metav1.DeleteOptions{}, metav1.ListOptions{LabelSelector: "owner=helm"})
		errtest.Must(t, err)
		return s.tryHelm(t, "install", "kubeveil", s.chart)
	})
	t.Logf("cut after 0 to %d writes", n)
	s.uninstall(t)
}

// uninstall removes the chart without volumes as docs/how-to/helm.md says.
func (s *server) uninstall(t *testing.T) {
	t.Helper()
	s.runHelm(t, "uninstall", "kubeveil")
	s.kubectl(t, "delete", "--ignore-not-found", "-f", s.network)
}

// removeVolumes removes the objects of volumes as docs/how-to/uninstall.md says.
func (s *server) removeVolumes(t *testing.T) {
	t.Helper()
	s.kubectl(t, "-n", "kube-system", "delete", "daemonset", "veil-csi")
	s.kubectl(t, "annotate", "crd", "veilvolumes.csi.kubeveil.io",
		"csi.kubeveil.io/destroy=veilvolumes.csi.kubeveil.io")
	s.kubectl(t, "delete", "--ignore-not-found", "-f", s.volumes)
}

var (
	restraint = regexp.MustCompile(
		`/(customresourcedefinitions|validatingadmissionpolic(ies|ybindings))(/|$)`)
	restrainedByIt = regexp.MustCompile(
		`/(clusterroles|clusterrolebindings|roles|rolebindings|daemonsets)(/|$)`)
)

// checkOrder installs the chart again and again, the last time to stay. Each time all definitions
// and policies have to be there before the first role and the first DaemonSet.
func (s *server) checkOrder(t *testing.T) {
	rounds := 2
	if nettest.Long() {
		rounds = 20
	}
	for i := range rounds {
		_, begin := s.gate.since(0)
		s.runHelm(t, "install", "kubeveil", s.chart)
		writes, _ := s.gate.since(begin)

		last, first := -1, slices.IndexFunc(writes, restrainedByIt.MatchString)
		for j, w := range writes {
			if restraint.MatchString(w) {
				last = j
			}
		}
		if last < 0 || first < last {
			t.Fatalf("installation %d: the last policy is write %d, the first role or DaemonSet %d:\n%s",
				i+1, last, first, strings.Join(writes, "\n"))
		}
		if i < rounds-1 {
			s.uninstall(t)
		}
	}
	t.Logf("%d installations of %d in the right order", rounds, rounds)
}

// checkUpgrade upgrades the chart to one whose VeilNodes have another field. The policies exist at
// each moment.
func (s *server) checkUpgrade(t *testing.T) {
	next := ofRelease
	next.Version = "v0.2.0"
	files, err := Files(t.Context(), next, s.kustomize)
	errtest.Must(t, err)
	const definition = "templates/customresourcedefinition-veilnodes.kubeveil.io.yaml"
	mtu := regexp.MustCompile(`(?m)^( +)mtu:$`)
	if len(mtu.FindAllString(files[definition], -1)) != 1 {
		t.Fatalf("the definition has no field mtu:\n%s", files[definition])
	}
	files[definition] = mtu.ReplaceAllString(files[definition],
		"${1}added:\n${1}  type: string\n${1}mtu:")
	chart := filepath.Join(t.TempDir(), "next.tgz")
	errtest.Must(t, Write(chart, Name, files))

	_, begin := s.gate.since(0)
	s.runHelm(t, "upgrade", "kubeveil", chart, "--reset-then-reuse-values",
		"--set", "volumes.enabled=true")
	writes, _ := s.gate.since(begin)
	for _, w := range writes {
		if strings.HasPrefix(w, "DELETE") && restraint.MatchString(w) {
			t.Errorf("the upgrade deletes: %s", w)
		}
	}

	errtest.Must(t, labhost.Until(t.Context(), 20*time.Second, func() error {
		o, err := s.admin.Dynamic.Resource(veilNodes).Create(t.Context(),
			veilNode("node-1", map[string]any{"added": "text"}),
			metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if err != nil {
			return err
		}
		if text, _, _ := unstructured.NestedString(o.Object, "spec", "added"); text != "text" {
			return errors.New("the API server does not know the new field")
		}
		return nil
	}))
	if err := s.writeAsDaemon(t.Context(), "node-2"); !refusedByPolicy(err) {
		t.Errorf("after the upgrade, the daemon of node-1 wrote the VeilNode of node-2: %v", err)
	}
}

// checkUninstall removes everything as the documents say. The API server then has the objects that
// it had before.
func (s *server) checkUninstall(t *testing.T, before apiobject.Inventory) {
	s.removeVolumes(t)
	s.uninstall(t)
	errtest.Must(t, labhost.Until(t.Context(), 20*time.Second, func() error {
		all, err := s.admin.List(t.Context())
		if err != nil {
			return err
		}
		for uid, by := range all {
			if _, known := before[uid]; !known && by != "" {
				return fmt.Errorf("an object by %q is left", by)
			}
		}
		return nil
	}))
	out, err := s.try(t, s.kustomize.Command[0], "get", "-A", "-o", "name",
		strings.Join(ourKinds, ","))
	if err != nil || strings.Contains(out, "veil") {
		t.Errorf("left: %v\n%s", err, out)
	}
}

// ourKinds are kinds of objects in the manifests.
var ourKinds = []string{"crd", "validatingadmissionpolicy", "validatingadmissionpolicybinding",
	"serviceaccount", "clusterrole", "clusterrolebinding", "role", "rolebinding", "configmap",
	"daemonset", "deployment", "storageclass", "csidriver", "secret"}
