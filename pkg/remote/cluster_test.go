package remote

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/poll"
)

func fakeCluster(objects ...runtime.Object) *Cluster {
	return &Cluster{Client: fake.NewClientset(objects...),
		ConnectConfig: ConnectConfig{Image: "tools", Canary: "c", Log: slog.New(slog.DiscardHandler)}}
}

func node(name string, ready bool, change func(*corev1.Node)) *corev1.Node {
	status := corev1.ConditionFalse
	if ready {
		status = corev1.ConditionTrue
	}
	n := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name,
			Labels: map[string]string{corev1.LabelOSStable: "linux"}},
		Spec: corev1.NodeSpec{PodCIDRs: []string{"198.19.0.0/24", "nonsense", "fd42:1::/64"}},
		Status: corev1.NodeStatus{
			Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "198.18.0.11"},
				{Type: corev1.NodeHostName, Address: name},
				{Type: corev1.NodeInternalIP, Address: "fd42::b"}},
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: status}},
		},
	}
	if change != nil {
		change(n)
	}
	return n
}

func TestWorkers(t *testing.T) {
	taint := func(effect corev1.TaintEffect) func(*corev1.Node) {
		return func(n *corev1.Node) { n.Spec.Taints = []corev1.Taint{{Key: "k", Effect: effect}} }
	}
	c := fakeCluster(
		node("b", true, nil), node("a", true, taint(corev1.TaintEffectPreferNoSchedule)),
		node("not-ready", false, nil),
		node("tainted", true, taint(corev1.TaintEffectNoSchedule)),
		node("cordoned", true, func(n *corev1.Node) { n.Spec.Unschedulable = true }),
		node("no-kubelet", true, func(n *corev1.Node) { n.Labels = nil }),
	)
	workers, err := c.Workers(t.Context())
	errtest.Must(t, err)

	var names []string
	for _, w := range workers {
		names = append(names, w.Name)
	}

	if !slices.Equal(names, []string{"a", "b"}) {
		t.Errorf("workers %v", names)
	}
	w := workers[0]
	if four, ok := w.Addr(true); !ok || four != netip.MustParseAddr("198.18.0.11") {
		t.Errorf("IPv4 %v %v", four, ok)
	}
	if six, ok := w.Addr(false); !ok || six != netip.MustParseAddr("fd42::b") ||
		len(w.PodPrefixes) != 2 {
		t.Errorf("IPv6 %v %v, prefixes %v", six, ok, w.PodPrefixes)
	}
	errtest.Check(t, c.WaitNodesReady(t.Context(), time.Second, "a", "b"))

	if err := c.WaitNodesReady(t.Context(), time.Millisecond, "a", "nobody"); err == nil ||
		!strings.Contains(err.Error(), "1 nodes of [a nobody]") {
		t.Errorf("a node that is not there: %v", err)
	}
	if err := c.WaitNodesReady(t.Context(), time.Millisecond); err == nil ||
		!strings.Contains(err.Error(), "node not-ready is not Ready") {
		t.Errorf("all nodes: %v", err)
	}
}

func TestPodObject(t *testing.T) {
	p := Pod{Name: "a", Node: "n", HostPort: 80, Labels: map[string]string{"x": "y"},
		Env: map[string]string{"B": "2", "A": "1"}, Capabilities: []corev1.Capability{"NET_RAW"}}
	got := p.object()
	c := got.Spec.Containers[0]
	if got.Labels["app"] != "a" || got.Labels["x"] != "y" || got.Spec.NodeName != "n" ||
		*got.Spec.AutomountServiceAccountToken {
		t.Errorf("pod %+v", got)
	}
	if !slices.Equal(c.Args, []string{"echo-serve"}) || c.ReadinessProbe == nil ||
		c.Env[0].Name != "A" {
		t.Errorf("container %+v", c)
	}
	if len(c.Ports) != 2 || c.Ports[1].Protocol != corev1.ProtocolUDP ||
		c.Ports[1].HostPort != 80 || c.Ports[1].ContainerPort != EchoPort {
		t.Errorf("ports %+v", c.Ports)
	}
	if s := c.SecurityContext; !slices.Equal(s.Capabilities.Drop, []corev1.Capability{"ALL"}) ||
		!slices.Equal(s.Capabilities.Add, p.Capabilities) {
		t.Errorf("capabilities %+v", s.Capabilities)
	}
	if other := (&Pod{Name: "b", Args: []string{"pause"}}).
		object(); other.Spec.Containers[0].ReadinessProbe != nil {
		t.Error("what does not echo is probed")
	}
}

func TestReadiness(t *testing.T) {
	waiting := func(reason string) corev1.PodStatus {
		return corev1.PodStatus{Phase: corev1.PodPending,
			ContainerStatuses: []corev1.ContainerStatus{{Image: "i",
				State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{
					Reason: reason}}}}}
	}
	tests := []struct {
		name   string
		status corev1.PodStatus
		// want is in the error; "" means that there is no error. final errors end the wait.
		want  string
		final bool
	}{
		{"ready with an address", corev1.PodStatus{PodIPs: []corev1.PodIP{{IP: "198.19.0.1"}},
			Conditions: []corev1.PodCondition{{Type: corev1.PodReady,
				Status: corev1.ConditionTrue}}}, "", false},
		{"ready without an address", corev1.PodStatus{Phase: corev1.PodRunning,
			Conditions: []corev1.PodCondition{{Type: corev1.PodReady,
				Status: corev1.ConditionTrue}}}, "phase Running", false},
		{"being made", waiting("ContainerCreating"), "ContainerCreating", false},
		{"its image cannot be pulled", waiting("ImagePullBackOff"), "image i: ImagePullBackOff",
			true},
		{"refused by the kubelet", corev1.PodStatus{Phase: corev1.PodFailed, Reason: "OutOfcpu"},
			"OutOfcpu", true},
	}

	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			err := readiness(&corev1.Pod{Status: tt.status})
			var stop poll.StopError
			switch {
			case tt.want == "" && err != nil:
				t.Error(err)
			case tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)):
				t.Errorf("%v, want %q", err, tt.want)
			case errors.As(err, &stop) != tt.final:
				t.Errorf("final: %v, want %v", !tt.final, tt.final)
			}
		})
	}
}

func TestServeWaitsForAllFamilies(t *testing.T) {
	ready := true
	slice := func(name string, kind discoveryv1.AddressType,
		endpoints ...discoveryv1.Endpoint) *discoveryv1.EndpointSlice {
		return &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "ns",
			Labels: map[string]string{discoveryv1.LabelServiceName: "s"}}, AddressType: kind,
			Endpoints: endpoints}
	}
	one := discoveryv1.Endpoint{Conditions: discoveryv1.EndpointConditions{Ready: &ready}}
	n := &Namespace{Name: "ns", Cluster: fakeCluster(slice("four", discoveryv1.AddressTypeIPv4, one,
		one), slice("six", discoveryv1.AddressTypeIPv6))}
	errtest.Check(t, n.WaitEndpoints(t.Context(), "s", 1))
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if err := n.WaitEndpoints(ctx, "s", 2); err == nil ||
		!strings.Contains(err.Error(), "ready in 1 families of 2") {
		t.Errorf("without an IPv6 endpoint: %v", err)
	}
}

func TestServiceObject(t *testing.T) {
	s := Service{Name: "s", Type: corev1.ServiceTypeNodePort, Local: true, Port: 80, Target: 7000}
	o := s.object()
	if o.Spec.Selector["app"] != "s" ||
		*o.Spec.IPFamilyPolicy != corev1.IPFamilyPolicyPreferDualStack ||
		o.Spec.ExternalTrafficPolicy != corev1.ServiceExternalTrafficPolicyLocal {
		t.Errorf("%+v", o.Spec)
	}
	if len(o.Spec.Ports) != 2 || o.Spec.Ports[0].Port != 80 ||
		o.Spec.Ports[0].TargetPort.IntValue() != 7000 {
		t.Errorf("ports %+v", o.Spec.Ports)
	}
	if o := (&Service{Name: "h", Headless: true}).object(); o.Spec.ClusterIP !=
		corev1.ClusterIPNone || o.Spec.Type != corev1.ServiceTypeClusterIP {
		t.Errorf("headless: %+v", o.Spec)
	}
}

func TestUntil(t *testing.T) {
	calls := 0
	err := Until(t.Context(), "it", time.Minute, func(context.Context) error {
		if calls++; calls < 3 {
			return errors.New("not yet")
		}
		return nil
	})
	if err != nil || calls != 3 {
		t.Errorf("%v after %d calls", err, calls)
	}
	wanted := errors.New("never")
	if err := Until(t.Context(), "it", time.Minute,
		func(context.Context) error {
			return Stop(wanted)
		}); !errors.Is(err, wanted) || err.Error() != "it: never" {
		t.Errorf("stopped: %v", err)
	}
	err = Until(t.Context(), "it", time.Millisecond, func(context.Context) error { return wanted })
	if !errors.Is(err, wanted) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("out of patience: %v", err)
	}
}

func TestGoneAfter(t *testing.T) {
	r := schema.GroupResource{Resource: "namespaces"}
	errtest.Check(t, goneAfter(apierrors.NewNotFound(r, "n")))
	if err := goneAfter(nil); !errors.Is(err, errStillThere) {
		t.Error(err)
	}
	var stop poll.StopError
	if err := goneAfter(apierrors.NewForbidden(r, "n", nil)); !errors.As(err, &stop) {
		t.Errorf("forbidden is tried again: %v", err)
	}
}

func TestRemaining(t *testing.T) {
	n := &corev1.Namespace{Status: corev1.NamespaceStatus{Conditions: []corev1.NamespaceCondition{
		{Type: corev1.NamespaceDeletionContentFailure, Status: corev1.ConditionFalse,
			Message: "all is deleted"},
		{Type: corev1.NamespaceContentRemaining, Status: corev1.ConditionTrue,
			Message: "pods. has 3 resource instances"},
	}}}
	if err := remaining(n); !errors.Is(err, errStillThere) ||
		err.Error() != "still there: pods. has 3 resource instances" {
		t.Error(err)
	}
}

// count is a command that answers each line with its length, until "end" or the end of its standard
// input.
func count(_ context.Context, stdin io.Reader, stdout io.Writer) error {
	lines := bufio.NewScanner(stdin)
	for lines.Scan() {
		switch lines.Text() {
		case "end":
			return errors.New("as it was told")
		case "nonsense":
			fmt.Fprintln(stdout, `"text"`)
		default:
			fmt.Fprintln(stdout, len(lines.Text()))
		}
	}
	return lines.Err()
}

func TestSession(t *testing.T) {
	s := newSession(t.Context(), "count", count)
	defer s.Close()
	for _, line := range []string{"a", "four"} {
		var n int
		if err := s.Ask(t.Context(), line, &n); err != nil || n != len(line) {
			t.Errorf("%q: %d, %v", line, n, err)
		}
	}
	var n int
	if err := s.Ask(t.Context(), "nonsense", &n); err == nil ||
		!strings.Contains(err.Error(), `count: answer`) {
		t.Errorf("an answer of another kind: %v", err)
	}
	if err := s.Ask(t.Context(), "end", &n); err == nil ||
		!strings.Contains(err.Error(), "as it was told") {
		t.Errorf("a command that ends: %v", err)
	}
	if err := s.Ask(t.Context(), "a", &n); err == nil ||
		!strings.Contains(err.Error(), "as it was told") {
		t.Errorf("a command that has ended: %v", err)
	}
}

func TestSessionOfAHangingCommand(t *testing.T) {
	s := newSession(t.Context(), "hang", func(ctx context.Context, _ io.Reader, _ io.Writer) error {
		<-ctx.Done()
		return ctx.Err()
	})
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	var n int
	if err := s.Ask(ctx, "a", &n); !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
	s.Close()
}
