package policyfeed

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/pkg/kube/kubetest"
	"github.com/kubeveil/kubeveil/pkg/policy"
)

// putSink records what PutEvent passes on.
type putSink struct {
	pods     []policy.Pod
	policies []policy.Policy
}

func (s *putSink) PutPod(p policy.Pod)       { s.pods = append(s.pods, p) }
func (s *putSink) PutPolicy(p policy.Policy) { s.policies = append(s.policies, p) }

// An event is passed on as Run does. An object that Run leaves out is an error.
func TestPutEvent(t *testing.T) {
	pod := func(name string, phase corev1.PodPhase) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "shop",
			Labels: map[string]string{"app": name}}, Spec: corev1.PodSpec{NodeName: "node-1"},
			Status: corev1.PodStatus{Phase: phase, PodIPs: []corev1.PodIP{{IP: "198.18.1.1"}}}}
	}
	deny := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: "deny",
		Namespace: "shop"}}

	var sink putSink
	for _, tt := range []struct {
		apiVersion, kind string
		object           interface{ Marshal() ([]byte, error) }
		refused          string
	}{
		{"v1", "Pod", pod("web", corev1.PodRunning), ""},
		{"networking.k8s.io/v1", "NetworkPolicy", deny, ""},
		{"v1", "Pod", pod("done", corev1.PodSucceeded), "it is ignored"},
		{"v1", "Namespace", &corev1.Namespace{}, "it is ignored"},
	} {
		raw, err := kubetest.Protobuf(tt.apiVersion, tt.kind, tt.object)
		errtest.Must(t, err)
		event, err := (&metav1.WatchEvent{Type: "MODIFIED",
			Object: runtime.RawExtension{Raw: raw}}).Marshal()
		errtest.Must(t, err)
		err = PutEvent(event, "node-1", &sink)
		if (err == nil) != (tt.refused == "") ||
			err != nil && !strings.Contains(err.Error(), tt.refused) {
			t.Errorf("%s: error %v, want %q", tt.kind, err, tt.refused)
		}
	}

	if len(sink.pods) != 1 || sink.pods[0].Node != "node-1" ||
		sink.pods[0].Labels["app"] != "web" || len(sink.pods[0].Addrs) != 1 {
		t.Errorf("pods %+v", sink.pods)
	}
	if len(sink.policies) != 1 || !sink.policies[0].Isolates[policy.Ingress] {
		t.Errorf("policies %+v", sink.policies)
	}
}
