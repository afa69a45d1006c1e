package manifests_test

import (
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/filetest"
	"github.com/kubeveil/kubeveil/internal/manifesttest"
)

// What the token of a veild may do stands in docs/security.md, in whole, and no more than that.
func TestRightsOfVeildAreDocumented(t *testing.T) {
	want := map[string]string{}
	add := func(folder string, o *unstructured.Unstructured) {
		var role rbacv1.ClusterRole
		typed(t, o, &role)
		for _, r := range role.Rules {
			for _, resource := range r.Resources {
				want[folder+" "+resource] = strings.Join(r.Verbs, ", ")
			}
		}
	}
	for _, m := range manifesttest.Kustomized(t, "cni") {
		if o := m.Object; strings.HasPrefix(o.GetName(), "kubeveil-veild") &&
			slices.Contains([]string{"ClusterRole", "Role"}, o.GetKind()) {
			add("cni", o)
		}
	}
	for component, key := range map[string]string{"policy": "ClusterRole kubeveil-veild",
		"services": "ClusterRole kubeveil-veild", "sites": "ClusterRole kubeveil-veild", "api-path": "Role kubeveil-veild-apiserver"} {
		was, is := withComponent(t, component)
		rules, _, err := unstructured.NestedSlice(was[key].Object, "rules")
		errtest.Must(t, err)
		after, _, err := unstructured.NestedSlice(is[key].Object, "rules")
		errtest.Must(t, err)
		is[key].Object["rules"] = after[len(rules):]
		add(filepath.Join("components", component), is[key])
	}

	_, text, _ := strings.Cut(string(filetest.Read(t, "../docs/security.md")),
		"## What a node's token may do\n")
	text, _, _ = strings.Cut(text, "\n## ")
	got, quoted := map[string]string{}, regexp.MustCompile("(?:^|, )`([a-z]+)`")
	for line := range strings.Lines(text) {
		cells := strings.Split(line, " | ")
		if len(cells) != 4 || !strings.HasPrefix(line, "| `") {
			continue
		}
		for _, m := range quoted.FindAllStringSubmatch(cells[1], -1) {
			got[strings.Trim(cells[0], "| `")+" "+m[1]] = cells[2]
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("docs/security.md (-manifests +document):\n%s", diff)
	}
}
