package policy

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/kubeveil/kubeveil/cmd/veilctl/internal/verb"
	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/pkg/remote"
)

// nodesThat returns a clusterWait for node-1 to node-3, and the number of requests by pod. A node
// without a function in answer enforces the policies.
func nodesThat(answer map[string]func(asked int) (string, error)) (*clusterWait, map[string]int) {
	var mu sync.Mutex
	asked := map[string]int{}
	return &clusterWait{
		pods: func(context.Context) (map[string]string, error) {
			return map[string]string{"node-1": "veild-1", "node-2": "veild-2",
				"node-3": "veild-3"}, nil
		},
		ask: func(_ context.Context, pod string, _ time.Duration, _ string) ([]byte, error) {
			mu.Lock()
			defer mu.Unlock()
			asked[pod]++
			if say := answer[pod]; say != nil {
				out, err := say(asked[pod])
				return []byte(out), err
			}
			return []byte(`{"enforced":true,"policies":2}`), nil
		},
	}, asked
}

// runToTheEnd runs w with a fake clock that stops while any goroutine works. So all nodes get their
// requests before the timeout.
func runToTheEnd(t *testing.T, w *clusterWait, timeout time.Duration) (r clusterProgress,
	err error) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { r, err = w.run(t.Context(), timeout) })
	return r, err
}

func TestPolicyWaitOfAClusterAsksLateNodesAgain(t *testing.T) {
	late := func(asked int) (string, error) {
		if asked < 3 {
			return "", errors.New("shop/web was not received yet")
		}
		return `{"enforced":true,"policies":2}`, nil
	}
	w, asked := nodesThat(map[string]func(int) (string, error){"veild-2": late})
	r, err := runToTheEnd(t, w, time.Minute)
	if err != nil || !r.Enforced || len(r.Nodes) != 3 {
		t.Errorf("%+v, %v", r, err)
	}
	want := map[string]int{"veild-1": 1, "veild-2": 3, "veild-3": 1}
	if d := cmp.Diff(want, asked); d != "" {
		t.Errorf("how often each pod was asked:\n%s", d)
	}
}

// A node lists all policies only if no earlier node enforces them, or if it does not enforce the
// revision of the earlier node.
func TestPolicyWaitOfAClusterComparesRevisionsBeforeItLists(t *testing.T) {
	const nodes, late = 200, "veild-150"
	var mu sync.Mutex
	listed := map[string]int{}
	w := &clusterWait{
		pods: func(context.Context) (map[string]string, error) {
			pods := map[string]string{}
			for i := range nodes {
				pods[fmt.Sprint("node-", i)] = fmt.Sprint("veild-", i)
			}
			return pods, nil
		},
		ask: func(_ context.Context, pod string, _ time.Duration, revision string) ([]byte, error) {
			mu.Lock()
			defer mu.Unlock()
			if revision == "" {
				listed[pod]++
			} else if revision != "r1" {
				t.Errorf("%s was asked about revision %q", pod, revision)
			}
			if pod == late && listed[pod] < 2 {
				return nil, errors.New("shop/web was not received yet")
			}
			return []byte(`{"enforced":true,"policies":2,"revision":"r1"}`), nil
		},
	}

	for range 2 {
		clear(listed)
		r, err := runToTheEnd(t, w, time.Minute)
		if err != nil || !r.Enforced || len(r.Nodes) != nodes {
			t.Fatalf("%+v, %v", r, err)
		}
		if len(listed) == 0 || len(listed) > verb.NodesAtOnce+1 || listed[late] != 2 {
			t.Errorf("%d of %d nodes listed, want %d and the late one at most: %v", len(listed), nodes,
				verb.NodesAtOnce, listed)
		}
	}
}

func TestPolicyWaitOfAClusterNamesNodesThatDoNotEnforce(t *testing.T) {
	const timeout = 10 * time.Millisecond
	for name, tt := range map[string]struct {
		out  string
		err  error
		want string
	}{
		"late":         {"", errors.New("shop/web was\nnot seen yet"), "shop/web was; not seen yet"},
		"no JSON":      {"yes", nil, "invalid character"},
		"another JSON": {`{"policies":2}`, nil, "its answer is not valid"},
	} {
		t.Run(name, func(t *testing.T) {
			w, _ := nodesThat(map[string]func(int) (string, error){
				"veild-2": func(int) (string, error) { return tt.out, tt.err },
			})
			r, err := runToTheEnd(t, w, timeout)
			if err != nil || r.Enforced {
				t.Fatalf("%+v, %v", r, err)
			}
			var out bytes.Buffer
			errtest.Must(t, showClusterProgress(&out, r, timeout))
			said := out.String()
			if !strings.HasPrefix(said, "node-2: ") || !strings.Contains(said, tt.want) ||
				!strings.HasSuffix(said, "\n2 of 3 nodes enforce the policies of the API server after "+
					"10ms.\n") {
				t.Errorf("%q", said)
			}
		})
	}
}

func TestPolicyWaitOfAClusterFailsClosed(t *testing.T) {
	w, _ := nodesThat(nil)
	w.pods = func(context.Context) (map[string]string, error) { return map[string]string{}, nil }
	if r, err := runToTheEnd(t, w, time.Millisecond); err != nil || r.Enforced {
		t.Errorf("a cluster without nodes: %+v, %v", r, err)
	}
	refused := errors.New("forbidden")
	w.pods = func(context.Context) (map[string]string, error) { return nil, refused }
	if _, err := w.run(t.Context(), time.Minute); !errors.Is(err, refused) {
		t.Errorf("nodes that may not be listed: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	w, _ = nodesThat(map[string]func(int) (string, error){
		"veild-1": func(int) (string, error) { cancel(); return "", ctx.Err() },
	})
	if _, err := w.run(ctx, time.Minute); !errors.Is(err, context.Canceled) {
		t.Errorf("interrupted: %v", err)
	}
}

// The wait does not end while a Linux node has no pod of veild. Nodes with other systems do not
// count.
func TestPolicyWaitOfAClusterCountsNodesWithoutAPod(t *testing.T) {
	node := func(name, system string) *corev1.Node {
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name,
			Labels: map[string]string{corev1.LabelOSStable: system}}}
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: remote.SystemNamespace,
		Name: "veild-1", Labels: map[string]string{"app.kubernetes.io/component": "veild",
			"app.kubernetes.io/name": "kubeveil"}}, Spec: corev1.PodSpec{NodeName: "node-1"}}
	cluster := &remote.Cluster{Client: fake.NewClientset(node("node-1", "linux"),
		node("node-2", "linux"), node("node-3", "windows"), pod)}
	got, err := cluster.VeildPods(t.Context())
	errtest.Must(t, err)
	if d := cmp.Diff(map[string]string{"node-1": "veild-1", "node-2": ""}, got); d != "" {
		t.Error(d)
	}

	w, _ := nodesThat(nil)
	w.pods = func(context.Context) (map[string]string, error) { return got, nil }
	r, err := runToTheEnd(t, w, time.Millisecond)
	if err != nil || r.Enforced || !strings.Contains(strings.Join(r.Nodes[1].Missing, ""), "no pod") {
		t.Errorf("%+v, %v", r, err)
	}
}
