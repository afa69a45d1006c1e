package audit

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/google/go-cmp/cmp"

	"github.com/kubeveil/kubeveil/cmd/veilctl/internal/audit/result"
	"github.com/kubeveil/kubeveil/cmd/veilctl/internal/cluster"
)

// Digests of imported images differ between architectures. That is not a difference of nodes.
func TestImagesAreComparedByArchitecture(t *testing.T) {
	const pulled, elsewhere = "registry.example/kubeveil@sha256:a", "mirror.example/k@sha256:a"
	for name, tc := range map[string]struct {
		arch, first, second string // the architecture of the second node; the first is amd64
		want                map[result.Verdict]int
	}{
		"pulled":              {"arm64", pulled, pulled, map[result.Verdict]int{result.Good: 1}},
		"from a mirror":       {"arm64", pulled, elsewhere, map[result.Verdict]int{result.Good: 2}},
		"pulled, different":   {"amd64", pulled, "k@sha256:b", map[result.Verdict]int{result.Note: 2}},
		"imported":            {"amd64", "sha256:a", "sha256:a", map[result.Verdict]int{result.Good: 1}},
		"imported, different": {"amd64", "sha256:a", "sha256:b", map[result.Verdict]int{result.Note: 2}},
		"two architectures":   {"arm64", "sha256:a", "sha256:b", map[result.Verdict]int{result.Note: 2}},
		"not started": {"amd64", pulled, "", map[result.Verdict]int{result.Note: 1,
			result.Unseen: 1}},
	} {
		var pods []corev1.Pod
		for node, id := range map[string]string{"node-1": tc.first, "node-2": tc.second} {
			pods = append(pods, corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "veild-" + node},
				Spec: corev1.PodSpec{NodeName: node},
				Status: corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{
					{Name: "veild", Image: "kubeveil", ImageID: id}}}})
			pods[len(pods)-1].Labels = map[string]string{"app.kubernetes.io/component": "veild"}
		}
		s := judgeVersions(pods, nil, []cluster.NodeSeen{{Name: "node-1", Arch: "amd64"},
			{Name: "node-2", Arch: tc.arch}})

		got := map[result.Verdict]int{}
		for _, row := range s.Rows {
			got[row.Verdict]++
		}
		if diff := cmp.Diff(tc.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s%v", name, diff, s.Rows)
		}
	}
}
