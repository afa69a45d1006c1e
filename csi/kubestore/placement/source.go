package placement

import (
	"context"
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/kubeveil/kubeveil/csi/kubestore"
)

// nodeOfSource returns the node of the volume or snapshot that the claim copies.
func (p *Placer) nodeOfSource(ctx context.Context, claim copyOf) (string, error) {
	name := claim.source
	if claim.kind == "VolumeSnapshot" {
		return p.nodeOfSnapshot(ctx, claim.Namespace, name)
	}
	of, err := p.client.Resource(claimResource).Namespace(claim.Namespace).Get(ctx, name,
		metav1.GetOptions{})
	if err != nil {
		return "", err
	}
	bound := text(of, "spec", "volumeName")
	if bound == "" {
		return "", fmt.Errorf("its source, claim %s, has no volume yet", name)
	}
	pv, err := p.client.Resource(volumeResource).Get(ctx, bound, metav1.GetOptions{})
	if err != nil {
		return "", err
	}
	if text(pv, "spec", "csi", "driver") != kubestore.DriverName {
		return "", fmt.Errorf("its source, claim %s, is of another driver", name)
	}
	// A tenant may write the name of any volume into a claim.
	if uid := string(of.GetUID()); uid == "" || text(pv, "spec", "claimRef", "uid") != uid {
		return "", fmt.Errorf("its source, claim %s, names a volume that is not bound to it", name)
	}
	return nodeOfVolume(pv)
}

func (p *Placer) nodeOfSnapshot(ctx context.Context, namespace, name string) (string, error) {
	snap, err := p.client.Resource(snapResource).Namespace(namespace).Get(ctx, name,
		metav1.GetOptions{})
	if err != nil {
		return "", err
	}
	bound := text(snap, "status", "boundVolumeSnapshotContentName")
	if bound == "" {
		return "", fmt.Errorf("its source, snapshot %s, is not taken yet", name)
	}
	content, err := p.client.Resource(contentResource).Get(ctx, bound, metav1.GetOptions{})
	if err != nil {
		return "", err
	}
	if uid := string(snap.GetUID()); uid == "" ||
		text(content, "spec", "volumeSnapshotRef", "uid") != uid {
		return "", fmt.Errorf("its source, snapshot %s, names a content that is not bound to it",
			name)
	}
	node := content.GetLabels()[managedBy]
	if text(content, "spec", "driver") != kubestore.DriverName || node == "" {
		return "", fmt.Errorf("its source, snapshot %s, is of another driver, or its content %s has "+
			"no label %s", name, bound, managedBy)
	}
	return node, nil
}

// nodeOfVolume returns the only node in the affinity of a PersistentVolume.
func nodeOfVolume(pv *unstructured.Unstructured) (string, error) {
	terms, _, _ := unstructured.NestedSlice(pv.Object, "spec", "nodeAffinity", "required",
		"nodeSelectorTerms")
	var nodes []string
	for _, t := range terms {
		term, _ := t.(map[string]any)
		list, _, _ := unstructured.NestedSlice(term, "matchExpressions")
		for _, e := range list {
			m, _ := e.(map[string]any)
			values, _, _ := unstructured.NestedStringSlice(m, "values")
			if m["key"] == topologyKey {
				nodes = append(nodes, values...)
			}
		}
	}
	if nodes = slices.Compact(nodes); len(nodes) != 1 {
		return "", fmt.Errorf("PersistentVolume %s names the nodes %q, want one", pv.GetName(), nodes)
	}
	return nodes[0], nil
}
