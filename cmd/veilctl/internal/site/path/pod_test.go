package path

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	ktesting "k8s.io/client-go/testing"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
	table "github.com/kubeveil/kubeveil/pkg/cluster"
	"github.com/kubeveil/kubeveil/pkg/kube/veilnode"
	"github.com/kubeveil/kubeveil/pkg/remote"
	"github.com/kubeveil/kubeveil/pkg/wgkey"
)

// earlier returns a pod of another check.
func earlier(name string, phase corev1.PodPhase) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: name,
		Labels: map[string]string{remote.SuiteLabel: podSuite}},
		Status: corev1.PodStatus{Phase: phase}}
}

// newEnd returns an end of a cluster whose DaemonSet has another container before veild. Its pods
// are Ready at once.
func newEnd(t *testing.T) (e *End, pods func() []corev1.Pod) {
	t.Helper()
	ds := &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "veild",
		UID: "u"}}
	ds.Spec.Template.Spec = corev1.PodSpec{
		Containers: []corev1.Container{{Name: "added", Image: "x"},
			{Name: "veild", Image: "v"}},
		ServiceAccountName: "a", ImagePullSecrets: []corev1.LocalObjectReference{{Name: "registry"}},
		Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}}}
	client := fake.NewClientset(ds, earlier("killed", corev1.PodFailed),
		earlier("beside", corev1.PodRunning),
		&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "other"}})
	client.PrependReactor("create", "pods", func(a ktesting.Action) (bool, runtime.Object, error) {
		p := a.(ktesting.CreateAction).GetObject().(*corev1.Pod)
		ready := corev1.PodCondition{Type: corev1.PodReady, Status: corev1.ConditionTrue}
		p.Status = corev1.PodStatus{PodIPs: []corev1.PodIP{{IP: "192.0.2.1"}},
			Conditions: []corev1.PodCondition{ready}}
		return false, nil, nil
	})
	e = &End{What: "this cluster", node: remote.Node{Name: "n"}, Cluster: &remote.Cluster{
		Client: client, ConnectConfig: remote.ConnectConfig{Log: slog.New(slog.DiscardHandler)}}}

	return e, func() []corev1.Pod {
		list, err := client.CoreV1().Pods("").List(context.Background(), metav1.ListOptions{})
		errtest.Must(t, err)
		slices.SortFunc(list.Items, func(a, b corev1.Pod) int {
			return strings.Compare(a.Name, b.Name)
		})
		return list.Items
	}
}

func names(pods []corev1.Pod) (names []string) {
	for _, p := range pods {
		names = append(names, p.Name)
	}
	return names
}

// The pod of a check runs wherever veild runs, and its kubelet may pull the image of veild. Pods of
// checks that were killed are removed, and those that run beside this one stay.
func TestPodOfACheck(t *testing.T) {
	e, pods := newEnd(t)
	errtest.Must(t, e.start(t.Context()))
	all := pods()
	if got := names(all); !slices.Equal(got, []string{"beside", "other", e.pod.Name}) {
		t.Fatalf("pods %q", got)
	}
	s := all[2].Spec
	c := s.Containers[0]
	if c.Image != "v" || s.ImagePullSecrets[0].Name != "registry" ||
		s.ServiceAccountName != "a" || s.NodeName != "n" ||
		!s.HostNetwork || s.Tolerations[0].Operator != corev1.TolerationOpExists ||
		*s.ActiveDeadlineSeconds != int64(podLimit.Seconds()) || *s.AutomountServiceAccountToken {
		t.Errorf("spec %+v", s)
	}
	if o := c.SecurityContext; *o.RunAsUser != 0 || !*o.ReadOnlyRootFilesystem ||
		!slices.Equal(o.Capabilities.Add, []corev1.Capability{"NET_RAW"}) ||
		!slices.Equal(o.Capabilities.Drop, []corev1.Capability{"ALL"}) {
		t.Errorf("security context %+v", o)
	}
	if o := all[2].OwnerReferences; len(o) != 1 || o[0].UID != "u" || o[0].Controller != nil {
		t.Errorf("owners %+v", o)
	}

	ended, cancel := context.WithCancel(t.Context())
	cancel()
	errtest.Check(t, (&Prober{Here: e, There: &End{}}).Close(ended))
	removed, err := Remove(t.Context(), e.Cluster, false)
	if err != nil || !slices.Equal(removed, []string{"beside"}) {
		t.Errorf("removed %q: %v", removed, err)
	}
	if got := names(pods()); !slices.Equal(got, []string{"other"}) {
		t.Errorf("pods %q", got)
	}
}

// The check uses the addresses of the tunnel that veild will make: IPv4 where both nodes have it.
func TestAddressesOfACheck(t *testing.T) {
	p := &Prober{Here: &End{}, There: &End{}}
	for name, tt := range map[string]struct{ here, there, want string }{
		"both families": {"192.0.2.1:1 [2001:db8::1]:1", "192.0.2.2:2 [2001:db8::2]:2",
			"192.0.2.1:1 192.0.2.2:2"},
		"only IPv6 in common": {"192.0.2.1:1 [2001:db8::1]:1", "[2001:db8::2]:2",
			"[2001:db8::1]:1 [2001:db8::2]:2"},
		"none in common": {"192.0.2.1:1", "[2001:db8::2]:2", ""},
	} {
		for e, text := range map[*End]string{p.Here: tt.here, p.There: tt.there} {
			e.claim = &table.Claim{Endpoints: nettest.AddrPorts(strings.Fields(text)...)}
		}
		to, err := p.addresses()
		if got := to[0].String() + " " + to[1].String(); (err == nil) != (tt.want != "") ||
			err == nil && got != tt.want {
			t.Errorf("%s: %s, %v, want %s", name, got, err, tt.want)
		}
	}
}

// Only a Ready node on which Kubeveil runs is chosen, and rather one that takes pods.
func TestChosenNode(t *testing.T) {
	claim, err := veilnode.Encode(table.Claim{Keys: []table.Key{{Public: wgkey.Public{1}}},
		Endpoints: nettest.AddrPorts("192.0.2.1:51820")})
	errtest.Must(t, err)
	e := &End{Nodes: []remote.Node{{Name: "tainted", Ready: true},
		{Name: "away", Schedulable: true}, {Name: "bare", Ready: true, Schedulable: true},
		{Name: "good", Ready: true, Schedulable: true}}}
	claims := map[string][]byte{"tainted": claim, "away": claim, "good": claim}
	for name, want := range map[string]string{"": "good", "tainted": "tainted", "away": "",
		"bare": ""} {
		e.node = remote.Node{}
		if err := e.choose(name, claims); e.node.Name != want || (err == nil) != (want != "") {
			t.Errorf("node %q: %q, %v, want %q", name, e.node.Name, err, want)
		}
	}
}
