package kubestore

import (
	"context"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// maxMessage is the length of the longest message of an event, in bytes (core/v1 validation).
const maxMessage = 1024

// Warn creates an event of type Warning for the claim of a volume, where the volume's users see it.
// For a volume without a claim it does nothing and returns nil.
func (s *Store) Warn(ctx context.Context, volume, reason, message string) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	volumes := s.client.Resource(schema.GroupVersionResource{Version: "v1",
		Resource: "persistentvolumes"})
	pv, err := volumes.Get(ctx, volume, metav1.GetOptions{})
	if err != nil {
		return explain("claim of volume "+volume, err)
	}

	claim, ok, err := unstructured.NestedMap(pv.Object, "spec", "claimRef")
	namespace, _ := claim["namespace"].(string)
	if err != nil || !ok || namespace == "" {
		return err
	}
	if len(message) > maxMessage {
		message = message[:maxMessage]
	}

	now := time.Now().UTC().Format(time.RFC3339)
	event := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "Event",
		"metadata": map[string]any{"generateName": volume + ".", "namespace": namespace},
		"involvedObject": map[string]any{
			"apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": namespace,
			"name": claim["name"], "uid": claim["uid"],
		},
		"type": "Warning", "reason": reason, "message": message,
		"source":         map[string]any{"component": "veil-csi", "host": s.node},
		"firstTimestamp": now, "lastTimestamp": now, "count": int64(1),
	}}

	events := s.client.Resource(schema.GroupVersionResource{Version: "v1",
		Resource: "events"}).Namespace(namespace)
	if _, err := events.Create(ctx, event, metav1.CreateOptions{}); err != nil {
		return explain(fmt.Sprintf("event at claim %s/%v", namespace, claim["name"]), err)
	}

	return nil
}
