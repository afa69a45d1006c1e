package audit

import (
	"cmp"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/kubeveil/kubeveil/cmd/veilctl/internal/audit/result"
	"github.com/kubeveil/kubeveil/cmd/veilctl/internal/cluster"
	"github.com/kubeveil/kubeveil/cmd/veilctl/internal/verb"
)

// judgeVersions returns the section about programs and images. nodes are the nodes of the pods.
func judgeVersions(pods []corev1.Pod, err error, nodes []cluster.NodeSeen) *result.Section {
	s := &result.Section{Name: "versions", Title: "Versions and image digests",
		Text: "Containers of Kubeveil's pods in kube-system, by the digest that the runtime of " +
			"the node reports. An image that was imported without a name with its digest has a " +
			"digest for each architecture.",
		Head: []string{"container", "image", "digest", "pods", "remark"}}
	if err != nil {
		s.Lacks("all pods", err.Error())
		return s
	}

	seen := imagesOf(pods, nodes)
	for k, on := range seen.nodes {
		row := result.Row{Verdict: result.Good, Cells: []string{k.container, k.image, k.id,
			fmt.Sprint(len(on)), ""}}
		some := verb.Some(slices.Sorted(slices.Values(on)))
		switch {
		case k.id == "":
			row.Verdict, row.Why = result.Unseen, "the digest is unknown on "+some
			row.Cells[4] = row.Why
		case len(seen.digests[k.what]) > 1:
			row.Verdict = result.Note
			row.Cells[4] = "digests differ between nodes; this digest is on " + some
		case len(seen.whats[k.container]) > 1:
			row.Verdict = result.Note
			row.Cells[4] = "not compared with all nodes, because one of the digests is for one " +
				"architecture; this digest is on " + some
		}
		s.Rows = append(s.Rows, row)
	}
	slices.SortFunc(s.Rows, func(a, b result.Row) int { return slices.Compare(a.Cells, b.Cells) })
	if len(s.Rows) == 0 {
		s.Lacks("all pods", "kube-system has no pod of Kubeveil")
	}
	return s
}

// image is an image of a container. what is what it is compared as, see cluster.ComparedImage.
type image struct{ container, image, id, what string }

// images are the images of pods.
type images struct {
	// nodes are the nodes that run an image.
	nodes map[image][]string
	// digests are the digests by what is compared, and whats are the latter by container.
	digests, whats map[string]map[string]bool
}

// imagesOf returns the images of all containers of pods.
func imagesOf(pods []corev1.Pod, nodes []cluster.NodeSeen) images {
	arches := map[string]string{}
	for _, n := range nodes {
		arches[n.Name] = n.Arch
	}
	all := images{map[image][]string{}, map[string]map[string]bool{}, map[string]map[string]bool{}}
	add := func(to map[string]map[string]bool, key, value string) {
		if to[key] == nil {
			to[key] = map[string]bool{}
		}
		to[key][value] = true
	}

	for _, p := range pods {
		component := cmp.Or(p.Labels["app.kubernetes.io/component"], p.Name)
		for _, c := range slices.Concat(p.Status.InitContainerStatuses,
			p.Status.ContainerStatuses) {
			container := component + "/" + c.Name
			what, digest := cluster.ComparedImage(container, c.ImageID, arches[p.Spec.NodeName])
			k := image{container, c.Image, c.ImageID, what}
			all.nodes[k] = append(all.nodes[k], cmp.Or(p.Spec.NodeName, p.Name))
			add(all.digests, what, digest)
			add(all.whats, container, what)
		}
	}
	return all
}
