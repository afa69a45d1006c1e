package cyclonus_test

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/filetest"
	"github.com/kubeveil/kubeveil/pkg/kube"
	"github.com/kubeveil/kubeveil/pkg/policy"
)

// objects are the objects that veild has after a step.
type objects struct {
	pods       map[policy.Name]policy.Pod
	namespaces map[string]policy.Namespace
	policies   map[policy.Name]policy.Policy
}

func newObjects() objects {
	return objects{map[policy.Name]policy.Pod{}, map[string]policy.Namespace{},
		map[policy.Name]policy.Policy{}}
}

// server is an API server that has the objects of one step, in protobuf.
type server struct {
	lists      atomic.Pointer[map[string][]byte]
	kubeconfig string
}

func newServer(t *testing.T) *server {
	s := &server{kubeconfig: filepath.Join(t.TempDir(), "kubeconfig")}
	s.lists.Store(&map[string][]byte{})
	h := httptest.NewServer(s)
	t.Cleanup(h.Close)
	text := fmt.Sprintf(`{"apiVersion": "v1", "kind": "Config", "current-context": "c",
		"contexts": [{"name": "c", "context": {"cluster": "c"}}],
		"clusters": [{"name": "c", "cluster": {"server": %q}}]}`, h.URL)
	filetest.Write(t, s.kubeconfig, []byte(text), 0o600)
	return s
}

// ServeHTTP answers lists, and keeps watches open without events, because nothing changes while a
// step is read.
func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	list, has := (*s.lists.Load())[r.URL.Path]
	query := r.URL.Query()
	switch {
	case !has:
		refuse(w, http.StatusNotFound, metav1.StatusReasonNotFound)
	case query.Get("sendInitialEvents") != "":
		refuse(w, http.StatusUnprocessableEntity, metav1.StatusReasonInvalid)
	case query.Get("watch") != "":
		w.Header().Set("Content-Type", runtime.ContentTypeProtobuf+";stream=watch")
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	default:
		w.Header().Set("Content-Type", runtime.ContentTypeProtobuf)
		_, _ = w.Write(list)
	}
}

func refuse(w http.ResponseWriter, code int, reason metav1.StatusReason) {
	w.Header().Set("Content-Type", runtime.ContentTypeJSON)
	w.WriteHeader(code)
	_, _ = fmt.Fprintf(w, `{"apiVersion": "v1", "kind": "Status", "status": "Failure",
		"reason": %q, "code": %d}`, reason, code)
}

// encoder writes objects as an API server does, with their envelope.
var encoder = func() runtime.Encoder {
	known := runtime.NewScheme()
	_, _ = corev1.AddToScheme(known), networkingv1.AddToScheme(known)
	return protobuf.NewSerializer(known, known)
}()

// set replaces the objects of the server by the objects of a step.
func (s *server) set(t *testing.T, st step, nodeOf func(*corev1.Pod) string) {
	t.Helper()
	meta := metav1.ListMeta{ResourceVersion: "1"}
	pods := corev1.PodList{ListMeta: meta,
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "PodList"}}
	for _, p := range st.Pods {
		p.UID = types.UID("uid of " + p.Namespace + "/" + p.Name)
		p.ResourceVersion, p.Spec.NodeName = "1", nodeOf(&p)
		pods.Items = append(pods.Items, p)
	}

	lists := map[string][]byte{}
	for path, list := range map[string]runtime.Object{
		"/api/v1/pods": &pods,
		"/api/v1/namespaces": &corev1.NamespaceList{ListMeta: meta, Items: st.Namespaces,
			TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "NamespaceList"}},
		"/apis/networking.k8s.io/v1/networkpolicies": &networkingv1.NetworkPolicyList{
			ListMeta: meta, Items: st.Policies, TypeMeta: metav1.TypeMeta{
				APIVersion: "networking.k8s.io/v1", Kind: "NetworkPolicyList"}},
	} {
		var b bytes.Buffer
		if err := encoder.Encode(list, &b); err != nil {
			t.Fatalf("encode the list of %s: %v", path, err)
		}
		lists[path] = b.Bytes()
	}
	s.lists.Store(&lists)
}

// sink keeps the objects that it receives, and closes complete when it has all objects of a step.
type sink struct {
	mu sync.Mutex
	objects
	want     step
	complete chan struct{}
	once     sync.Once
}

func (s *sink) do(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
	if len(s.pods) == len(s.want.Pods) && len(s.namespaces) == len(s.want.Namespaces) &&
		len(s.policies) == len(s.want.Policies) {
		s.once.Do(func() { close(s.complete) })
	}
}

func (s *sink) SetNodeLabels(map[string]map[string]string, []string) {}

func (s *sink) PutPod(p policy.Pod)                   { s.do(func() { s.pods[p.Name] = p }) }
func (s *sink) DeletePod(n policy.Name)               { s.do(func() { delete(s.pods, n) }) }
func (s *sink) PutNamespace(n policy.Namespace)       { s.do(func() { s.namespaces[n.Name] = n }) }
func (s *sink) DeleteNamespace(name string)           { s.do(func() { delete(s.namespaces, name) }) }
func (s *sink) PutPolicy(p policy.Policy)             { s.do(func() { s.policies[p.Name] = p }) }
func (s *sink) DeletePolicy(n policy.Name)            { s.do(func() { delete(s.policies, n) }) }
func (s *sink) PutClusterPolicy(policy.ClusterPolicy) {}
func (s *sink) DeleteClusterPolicy(string)            {}
func (s *sink) SetFailing(bool)                       {}
func (s *sink) Listed()                               {}

// read returns the objects of a step as veild reads them from the API server.
func (s *server) read(t *testing.T, what fmt.Stringer, st step,
	nodeOf func(*corev1.Pod) string) objects {
	t.Helper()
	s.set(t, st, nodeOf)
	client, err := kube.New(kube.ClientConfig{Node: "any", Kubeconfig: s.kubeconfig})
	errtest.Must(t, err)
	got := &sink{objects: newObjects(), want: st, complete: make(chan struct{})}

	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = client.RunPolicies(ctx, got)
	}()
	select {
	case <-got.complete:
	case <-time.After(20 * time.Second):
		t.Errorf("%s: not all objects were read; problems %q", what, client.Problems())
	}
	cancel()
	<-ended

	for name, p := range got.policies {
		if p.Invalid != "" {
			t.Errorf("%s: policy %s is taken for invalid: %s", what, name, p.Invalid)
		}
	}
	return got.objects
}
