package kubestore

import (
	"errors"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic/fake"

	"github.com/kubeveil/kubeveil/csi/volume"
	"github.com/kubeveil/kubeveil/internal/errtest"
)

func TestWarnIsSeenAtTheClaim(t *testing.T) {
	events := schema.GroupVersionResource{Version: "v1", Resource: "events"}
	pv := func(name string, spec map[string]any) *unstructured.Unstructured {
		return &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "v1", "kind": "PersistentVolume",
			"metadata": map[string]any{"name": name}, "spec": spec,
		}}
	}
	client := fake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(),
		map[schema.GroupVersionResource]string{
			VeilVolumes: Kind + "List", events: "EventList",
		}, pv("pvc-1", map[string]any{"claimRef": map[string]any{"namespace": "shop",
			"name": "data",
			"uid":  "u"}}), pv("pvc-free", map[string]any{}))
	s := NewForClient(client, "node-1")
	if err := s.Warn(t.Context(), "pvc-none", "Tampered", "m"); !errors.Is(err,
		volume.ErrNotFound) {
		t.Errorf("without a PersistentVolume: %v", err)
	}

	if err := s.Warn(t.Context(), "pvc-free", "Tampered", "m"); err != nil {
		t.Errorf("without a claim: %v", err)
	}
	errtest.Must(t, s.Warn(t.Context(), "pvc-1", "Tampered", strings.Repeat("x", 5000)))
	list, err := client.Resource(events).Namespace("shop").List(t.Context(), metav1.ListOptions{})
	if err != nil || len(list.Items) != 1 {
		t.Fatalf("%v, %v", list, err)
	}

	o := list.Items[0].Object
	at, _ := o["involvedObject"].(map[string]any)
	if o["reason"] != "Tampered" || o["type"] != "Warning" || at["name"] != "data" ||
		at["uid"] != "u" || len(o["message"].(string)) != maxMessage {
		t.Errorf("%v", o)
	}
}
