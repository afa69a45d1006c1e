package kube

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/kubeveil/kubeveil/pkg/policy"
)

// An event is passed on as RunPolicies does. An object that RunPolicies leaves out is an error.
func TestPutEvent(t *testing.T) {
	server := &fakeServer{t: t}
	web := podObject("web", "node-1", "Running", "198.18.1.1")
	done := podObject("done", "node-1", "Succeeded", "198.18.1.2")
	for _, o := range []m{web, done} {
		o["apiVersion"], o["kind"] = "v1", "Pod"
	}
	deny := m{"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
		"metadata": m{"name": "deny", "namespace": "shop"}, "spec": m{"podSelector": m{}}}
	namespace := m{"apiVersion": "v1", "kind": "Namespace", "metadata": m{"name": "shop"}}

	sink := newPolicyTale()
	for _, tt := range []struct {
		object  m
		into    runtime.Object
		refused string
	}{
		{web, &corev1.Pod{}, ""},
		{deny, &networkingv1.NetworkPolicy{}, ""},
		{done, &corev1.Pod{}, "it is not passed on"},
		{namespace, &corev1.Namespace{}, "it is not passed on"},
	} {
		event, err := (&metav1.WatchEvent{Type: "MODIFIED", Object: runtime.RawExtension{
			Raw: server.toProtobuf(tt.object, tt.into)}}).Marshal()
		if err != nil {
			t.Fatal(err)
		}
		err = PutEvent(event, "node-1", sink)
		if (err == nil) != (tt.refused == "") ||
			err != nil && !strings.Contains(err.Error(), tt.refused) {
			t.Errorf("%T: error %v, want %q", tt.into, err, tt.refused)
		}
	}

	pod := sink.pods[policy.Name{Namespace: "shop", Name: "web"}]
	if len(sink.pods) != 1 || pod.Node != "node-1" || pod.Labels["app"] != "web" ||
		len(pod.Addrs) != 1 {
		t.Errorf("pods %+v", sink.pods)
	}
	if p := sink.policies[policy.Name{Namespace: "shop", Name: "deny"}]; len(sink.policies) != 1 ||
		!p.Isolates[policy.Ingress] {
		t.Errorf("policies %+v", sink.policies)
	}
}
