package cluster

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/pkg/version"
)

// veildPod returns the pod of veild on a node, with an image by its digest.
func veildPod(node, digest string) corev1.Pod {
	return corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "veild-" + node,
			Labels: map[string]string{"app.kubernetes.io/component": "veild"}},
		Spec: corev1.PodSpec{NodeName: node},
		Status: corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{
			{Name: "veild", ImageID: digest}}},
	}
}

func TestVersionsDiffer(t *testing.T) {
	own := version.Info{Version: "v0.2.0", Commit: "c0ffee", Date: "2026-01-02T03:04:05Z",
		Go: "go1.26.8", Platform: "linux/amd64"}
	one, two := wellNode(t, "node-1", publishedKey), wellNode(t, "node-2", publishedKey)
	newer := wellNode(t, "node-2", publishedKey)
	newer.status.Version = "v0.2.0"
	hostile := wellNode(t, "node-2", publishedKey)
	hostile.status.Version = "v0.1.0\x1b[2J"
	silent := NodeSeen{Name: "node-2", linux: true, Pod: "veild-b", err: "no answer in time"}
	without := NodeSeen{Name: "node-2", linux: true}
	windows := NodeSeen{Name: "node-2"}

	for name, tc := range map[string]struct {
		second NodeSeen
		digest string
		same   bool
		want   string // a line of the table
	}{
		"the same":         {two, "sha256:a", true, "veild                 v0.1.0             all"},
		"another version":  {newer, "sha256:a", false, "veild                 v0.2.0             node-2"},
		"another image":    {two, "sha256:b", false, "image of veild/veild  sha256:b           node-2"},
		"no answer":        {silent, "sha256:a", false, "no answer             no answer in time  node-2"},
		"no pod":           {without, "sha256:a", false, "no pod of veild on this node  node-2"},
		"not a Linux node": {windows, "sha256:a", true, "veild                 v0.1.0             node-1"},
		"control characters": {hostile, "sha256:a", false,
			"v0.1.0\uFFFD[2J"},
	} {
		pods := []corev1.Pod{veildPod("node-1", "k@sha256:a"), veildPod("node-2", "k@"+tc.digest),
			veildPod("gone", "k@sha256:c")}
		r := compare(own, []NodeSeen{tc.second, one}, pods)
		var out bytes.Buffer
		errtest.Must(t, r.print(&out))
		if r.Same != tc.same || !strings.Contains(out.String(), tc.want) {
			t.Errorf("%s: same %t, want %t and %q:\n%s", name, r.Same, tc.same, tc.want, &out)
		}
	}

	r := compare(own, []NodeSeen{one, newer}, []corev1.Pod{veildPod("node-1", "sha256:a")})
	got, err := json.Marshal(r)
	errtest.Must(t, err)
	const want = `{"version":"v0.2.0","commit":"c0ffee","date":"2026-01-02T03:04:05Z",` +
		`"go":"go1.26.8","platform":"linux/amd64","same":false,"nodes":[` +
		`{"node":"node-1","version":"v0.1.0","digests":{"veild/veild":"sha256:a"}},` +
		`{"node":"node-2","version":"v0.2.0"}]}`
	if diff := cmp.Diff(want, string(got)); diff != "" {
		t.Error(diff)
	}
	if r := compare(own, nil, nil); r.Same {
		t.Error("a cluster without nodes is the same")
	}
}

// Digests of imported images differ between architectures. They do not make nodes differ, and the
// output says that they were not compared.
func TestImagesAreComparedWhereTheirDigestsCanBe(t *testing.T) {
	const pulled, elsewhere = "registry.example/kubeveil@sha256:a", "mirror.example/k@sha256:a"
	for name, tc := range map[string]struct {
		arch          string // of the second node; the first is amd64
		first, second string
		same          bool
		notCompared   int
		want          string // a line of the table, or the last line
	}{
		"pulled":            {"arm64", pulled, pulled, true, 0, "image of veild/veild  sha256:a"},
		"from a mirror":     {"arm64", pulled, elsewhere, true, 0, "all nodes run the same\n"},
		"pulled, different": {"amd64", pulled, "k@sha256:b", false, 0, "nodes differ"},
		"imported": {"amd64", "sha256:a", "sha256:a", true, 0,
			"image of veild/veild on amd64"},
		"imported, different": {"amd64", "sha256:a", "sha256:b", false, 0,
			"image of veild/veild on amd64"},
		"imported, two architectures": {"arm64", "sha256:a", "sha256:b", true, 1,
			"not compared between all nodes: the images of veild/veild."},
		"one pulled": {"amd64", pulled, "sha256:a", true, 1, "not compared"},
		"unknown architecture": {"", "sha256:a", "sha256:b", true, 1,
			"image of veild/veild on an unknown architecture"},
		"not started": {"amd64", "sha256:a", "", false, 1, "nodes differ"},
	} {
		one, two := wellNode(t, "node-1", publishedKey), wellNode(t, "node-2", publishedKey)
		one.Arch, two.Arch = "amd64", tc.arch

		r := compare(version.Info{}, []NodeSeen{one, two},
			[]corev1.Pod{veildPod("node-1", tc.first), veildPod("node-2", tc.second)})
		var out bytes.Buffer
		errtest.Must(t, r.print(&out))
		if r.Same != tc.same || len(r.NotCompared) != tc.notCompared ||
			!strings.Contains(out.String(), tc.want) {
			t.Errorf("%s: same %t, not compared %q, want %t, %d and %q:\n%s", name, r.Same,
				r.NotCompared, tc.same, tc.notCompared, tc.want, &out)
		}
	}
}

func TestVersionOnOneLine(t *testing.T) {
	var out bytes.Buffer
	errtest.Must(t, printInfo(&out, version.Info{Version: "v0.1.0", Commit: "c0ffee",
		Date: "2026-01-02T03:04:05Z", Go: "go1.26.8", Platform: "linux/arm64"}))
	const want = "v0.1.0 (commit c0ffee, 2026-01-02T03:04:05Z, go1.26.8, linux/arm64)\n"
	if out.String() != want {
		t.Errorf("%q, want %q", &out, want)
	}
}
