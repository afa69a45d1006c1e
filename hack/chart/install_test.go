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
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

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
	names := s.names(t)

	t.Run("an apply leaves no writer unrestrained", s.checkApply)
	t.Run("a second apply changes nothing", s.checkSecondApply)
	t.Run("an installation leaves no writer unrestrained", s.checkInstall)
	t.Run("the restraint comes first", s.checkOrder)
	t.Run("an upgrade brings a new schema", s.checkUpgrade)
	t.Run("nothing is left", func(t *testing.T) { s.checkUninstall(t, before, names) })
}

// checkApply applies the manifests with all components. The objects of components follow those of
// the manifests without components.
func (s *server) checkApply(t *testing.T) {
	for _, file := range []string{s.whole, s.wholeVolumes} {
		n := s.checkEachWrite(t, string(filetest.Read(t, file)), func() (string, error) {
			return s.try(t, s.kustomize.Command[0], "apply", "--server-side", "-f", file)
		})
		t.Logf("%s: %d writes", filepath.Base(file), n)
	}
	if err := s.writeAsDaemon(t.Context(), "node-2"); !refusedByPolicy(err) {
		t.Errorf("the daemon of node-1 wrote the VeilNode of node-2: %v", err)
	}
	errtest.Must(t, s.writeAsDaemon(t.Context(), "node-1"))
	s.remove(t)
}

// checkEachWrite checks after each write of install that no writer is unrestrained, and returns the
// number of writes. whole has all objects. An installation that is cut leaves what is there then.
// The long tests also cut it after 0, 1, 2 … writes, and begin again, until it succeeds.
func (s *server) checkEachWrite(t *testing.T, whole string, install func() (string, error)) int {
	t.Helper()
	if nettest.Long() {
		return s.cutAfterEach(t, whole, install)
	}

	n, written, checked := 0, make(chan bool), make(chan bool)
	s.gate.afterEach(func() {
		select {
		case written <- true:
			<-checked
		case <-t.Context().Done():
		}
	})
	defer s.gate.afterEach(nil)
	defer close(checked)
	failed := make(chan error, 1)
	go func() {
		out, err := install()
		if err != nil {
			err = fmt.Errorf("%w: %s", err, out)
		}
		failed <- err
	}()
	for {
		select {
		case <-written:
			n++
			s.checkRestrained(t, whole, n, false)
			checked <- true
		case err := <-failed:
			errtest.Must(t, err)
			s.checkRestrained(t, whole, n, true)
			return n
		}
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
		s.checkRestrained(t, whole, n, err == nil)
		if err == nil {
			return n
		}
		if n == 200 || t.Failed() {
			t.Fatalf("after %d writes: %v: %s", n, err, out)
		}
	}
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

// checkSecondApply checks that a second server-side apply of all objects changes none, for each
// manifest of a release and with components.
func (s *server) checkSecondApply(t *testing.T) {
	for _, file := range []string{s.network, s.volumes, s.beside, s.whole, s.wholeVolumes} {
		s.kubectl(t, "apply", "--server-side", "-f", file)
		s.kubectl(t, "wait", "--for=condition=Established", "crd",
			"-l", "app.kubernetes.io/part-of=kubeveil")
		versions := func() string {
			return s.kubectl(t, "get", "-f", file, "-o", "jsonpath="+
				`{range .items[*]}{.kind} {.metadata.name} {.metadata.resourceVersion}{"\n"}{end}`)
		}
		before := versions()
		s.kubectl(t, "apply", "--server-side", "-f", file)
		if diff := cmp.Diff(before, versions()); diff != "" || strings.Count(before, "\n") < 10 {
			t.Errorf("the second apply of %s (-before +after):\n%s\n%s", filepath.Base(file), diff,
				before)
		}
		t.Logf("%s: %d objects", filepath.Base(file), strings.Count(before, "\n"))
	}
	s.remove(t)
}

// checkInstall installs the chart with all that it has.
func (s *server) checkInstall(t *testing.T) {
	whole, good := s.template(t, withAll()...)
	if !good {
		t.Fatal(whole)
	}
	n := s.checkEachWrite(t, whole, func() (string, error) {
		// Helm refuses to install a release whose record exists.
		err := s.admin.Kubernetes.CoreV1().Secrets("kube-system").DeleteCollection(t.Context(),
			metav1.DeleteOptions{}, metav1.ListOptions{LabelSelector: "owner=helm"})
		if err != nil {
			return "", err
		}
		return s.tryHelm(t, withAll("install", "kubeveil", s.chart)...)
	})
	t.Logf("%d writes", n)
	s.uninstall(t)
}

// uninstall removes the chart as docs/how-to/helm.md and docs/how-to/uninstall.md say.
func (s *server) uninstall(t *testing.T) {
	t.Helper()
	s.removeVolumes(t)
	s.runHelm(t, "uninstall", "kubeveil")
	s.kubectl(t, "delete", "--ignore-not-found", "-f", s.network)
	s.kubectl(t, "delete", "validatingadmissionpolicybinding,validatingadmissionpolicy",
		"kubeveil-site-objects", "kubeveil-site-records")
}

// remove removes the objects of manifests with components.
func (s *server) remove(t *testing.T) {
	t.Helper()
	s.removeVolumes(t)
	s.kubectl(t, "delete", "--ignore-not-found", "-f", s.whole)
}

// removeVolumes removes the objects of volumes.
func (s *server) removeVolumes(t *testing.T) {
	t.Helper()
	s.kubectl(t, "-n", "kube-system", "delete", "daemonset", "veil-csi")
	s.kubectl(t, "annotate", "crd", "veilvolumes.csi.kubeveil.io",
		"csi.kubeveil.io/destroy=veilvolumes.csi.kubeveil.io")
	s.kubectl(t, "delete", "--ignore-not-found", "-f", s.wholeVolumes)
}

var (
	restraint = regexp.MustCompile(
		`/(customresourcedefinitions|validatingadmissionpolic(ies|ybindings))(/|$)`)
	restrainedByIt = regexp.MustCompile(
		`/(clusterroles|clusterrolebindings|roles|rolebindings|daemonsets|deployments)(/|$)`)
)

// checkOrder installs the chart with volumes and sites again and again, the last time to stay. Each
// time all definitions and policies have to be there before the first role and the first daemon.
func (s *server) checkOrder(t *testing.T) {
	const rounds = 20
	bindings := strings.Count(string(filetest.Read(t, s.whole))+string(filetest.Read(t,
		s.wholeVolumes)), "\nkind: ValidatingAdmissionPolicyBinding\n")
	for i := range rounds {
		_, begin := s.gate.since(0)
		s.runHelm(t, withAll("install", "kubeveil", s.chart)...)
		writes, _ := s.gate.since(begin)

		last, first, bound := -1, slices.IndexFunc(writes, restrainedByIt.MatchString), 0
		for j, w := range writes {
			if restraint.MatchString(w) {
				last = j
			}
			if strings.Contains(w, "/validatingadmissionpolicybindings") {
				bound++
			}
		}
		if first < last || bound != bindings {
			t.Fatalf("installation %d: the last policy is write %d, the first role or daemon %d, "+
				"%d of %d bindings:\n%s", i+1, last, first, bound, bindings,
				strings.Join(writes, "\n"))
		}
		if i < rounds-1 {
			s.forget(t)
		}
	}
	t.Logf("%d installations of %d in the right order, %d bindings each", rounds, rounds, bindings)
}

// forget removes the chart, but its definitions, which Helm keeps.
func (s *server) forget(t *testing.T) {
	t.Helper()
	s.runHelm(t, "uninstall", "kubeveil")
	c, ours := s.admin.Kubernetes.AdmissionregistrationV1(), metav1.ListOptions{
		LabelSelector: "app.kubernetes.io/part-of=kubeveil"}
	errtest.Must(t,
		c.ValidatingAdmissionPolicyBindings().DeleteCollection(t.Context(),
			metav1.DeleteOptions{}, ours),
		c.ValidatingAdmissionPolicies().DeleteCollection(t.Context(), metav1.DeleteOptions{}, ours))
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
	s.runHelm(t, "upgrade", "kubeveil", chart, "--reset-then-reuse-values")
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
func (s *server) checkUninstall(t *testing.T, before apiobject.Inventory, names string) {
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
	if diff := cmp.Diff(names, s.names(t)); diff != "" {
		t.Errorf("objects (-before +after):\n%s", diff)
	}
}

// names returns the names of all objects of kinds that are in the manifests.
func (s *server) names(t *testing.T) string {
	t.Helper()
	return s.kubectl(t, "get", "-A", "-o", "name", "crd,validatingadmissionpolicy,"+
		"validatingadmissionpolicybinding,serviceaccount,clusterrole,clusterrolebinding,role,"+
		"rolebinding,configmap,service,daemonset,deployment,storageclass,csidriver,secret,"+
		"servicemonitor,prometheusrule,volumesnapshotclass")
}
