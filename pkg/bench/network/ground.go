package network

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/kubeveil/kubeveil/pkg/bench/session"
	"github.com/kubeveil/kubeveil/pkg/remote"
)

// tool is the program of the suite's pods.
const tool = "veil-tools"

// ground is the test bed: two nodes, each with a measured pod and a privileged pod.
type ground struct {
	cluster *remote.Cluster
	ns      *remote.Namespace
	// nodes holds the client's node and the server's node, in this order.
	nodes [2]*place
}

// place is a node of the ground with its pods and sessions.
type place struct {
	remote.Node
	addr netip.Addr
	// platform is the answer of VerbPlatform on the node.
	platform session.Platform
	pod      *remote.Pod
	podAddr  netip.Addr
	// inPod is the session in the measured pod, onNode the session in the privileged pod.
	inPod, onNode *session.Session
}

func (g *ground) client() *place { return g.nodes[0] }
func (g *ground) server() *place { return g.nodes[1] }

// newGround makes the namespace, the pods and the sessions. If it fails, it removes what it made.
func newGround(ctx context.Context, c *remote.Cluster, names []string) (*ground, error) {
	g := &ground{cluster: c}
	if err := g.make(ctx, names); err != nil {
		return nil, errors.Join(err, g.close(context.WithoutCancel(ctx)))
	}
	return g, nil
}

func (g *ground) make(ctx context.Context, names []string) (err error) {
	if err := g.chooseNodes(ctx, names); err != nil {
		return err
	}
	if g.ns, err = g.cluster.Namespace(ctx, "kubeveil-bench", remote.Privileged); err != nil {
		return err
	}
	return g.both(func(i int, p *place) error {
		return g.occupy(ctx, p, []string{"client", "server"}[i])
	})
}

// chooseNodes selects the named nodes, which must be Ready. Without names it selects the first two
// nodes that are Ready and schedulable. Named nodes need not be schedulable, because pods are bound
// to nodes without the scheduler.
func (g *ground) chooseNodes(ctx context.Context, names []string) error {
	nodes, err := g.cluster.Nodes(ctx)
	if err != nil {
		return err
	}
	var chosen []remote.Node
	for _, n := range nodes {
		if n.Ready && (slices.Contains(names, n.Name) || len(names) == 0 && n.Schedulable) {
			chosen = append(chosen, n)
		}
	}
	if len(chosen) < 2 || len(names) != 0 && len(chosen) != 2 {
		return fmt.Errorf("%d nodes are Ready and schedulable of %v: two are needed; `kubectl get "+
			"nodes` shows why others are not", len(chosen), names)
	}
	for i := range g.nodes {
		p := &place{Node: chosen[i]}
		var ok bool
		if p.addr, ok = p.Addr(true); !ok {
			return fmt.Errorf("node %s has no IPv4 InternalIP: the suite measures over IPv4 only",
				p.Name)
		}
		g.nodes[i] = p
	}
	return nil
}

// podCPU is the CPU request of a measured pod.
const podCPU = "500m"

// occupy starts both pods of a node and their sessions.
func (g *ground) occupy(ctx context.Context, p *place, role string) error {
	p.pod = &remote.Pod{Name: role, Node: p.Name, Command: []string{tool, "pod-serve"},
		Change: func(o *corev1.Pod) {
			// A pod without a CPU request gets a hundredth of the kubelet's CPU share. It would
			// stall during each of the kubelet's rounds.
			o.Spec.Containers[0].Resources.Requests = corev1.ResourceList{
				corev1.ResourceCPU: resource.MustParse(podCPU)}
		}}
	agent := &remote.Pod{Name: "agent-" + role, Node: p.Name, Command: []string{tool, "node-wait"},
		HostNetwork: true, Change: func(o *corev1.Pod) {
			yes, grace := true, int64(10)
			// The agent finds the pod's network namespace and veild's memory by the host's
			// processes.
			o.Spec.HostPID = true
			o.Spec.TerminationGracePeriodSeconds = &grace
			o.Spec.Containers[0].SecurityContext = &corev1.SecurityContext{Privileged: &yes}
		}}

	started := make(chan error, 2)
	for _, pod := range []*remote.Pod{p.pod, agent} {
		go func() { started <- g.ns.Run(ctx, pod) }()
	}

	if err := errors.Join(<-started, <-started); err != nil {
		return fmt.Errorf("node %s: %w", p.Name, err)
	}
	var ok bool
	if p.podAddr, ok = p.pod.Addr(true); !ok {
		return fmt.Errorf("pod %s has no IPv4 address: the suite measures over IPv4 only",
			p.pod.Name)
	}

	p.inPod, p.onNode = openSession(ctx, p.pod), openSession(ctx, agent)
	if err := p.onNode.Call(ctx, session.VerbPlatform, session.Ask{NodeAddr: p.addr},
		&p.platform); err != nil {
		return fmt.Errorf("node %s: %w", p.Name, err)
	}

	return nil
}

// openSession opens a session that lives until it is closed, also if ctx ends earlier, because
// cleanup needs the session after an interrupted measurement.
func openSession(ctx context.Context, pod *remote.Pod) *session.Session {
	return session.Open(context.WithoutCancel(ctx), "pod "+pod.Name,
		func(ctx context.Context, in io.Reader, out io.Writer) error {
			return pod.ExecStream(ctx, in, out, tool, "session-serve")
		})
}

// closePatience bounds the time of close.
const closePatience = 3 * time.Minute

// close removes everything that the ground made. It continues after errors and returns them joined.
func (g *ground) close(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, closePatience)
	defer cancel()
	var errs []error
	for _, p := range g.nodes {
		if p == nil {
			continue
		}
		if p.onNode != nil {
			errs = append(errs, p.onNode.Call(ctx, session.VerbUnwire, struct{}{}, nil))
			p.onNode.Close()
		}
		if p.inPod != nil {
			p.inPod.Close()
		}
	}
	if g.ns != nil {
		errs = append(errs, g.ns.Close(ctx))
	}
	return errors.Join(errs...)
}

// both calls fn for both nodes at the same time, and returns the errors joined.
func (g *ground) both(fn func(i int, p *place) error) error {
	done := make(chan error, len(g.nodes))
	for i, p := range g.nodes {
		go func() { done <- fn(i, p) }()
	}
	var errs []error
	for range g.nodes {
		errs = append(errs, <-done)
	}
	return errors.Join(errs...)
}

// snapshot reads the counters of both nodes.
func (g *ground) snapshot(ctx context.Context) (counters [2]session.Counters, err error) {
	err = g.both(func(i int, p *place) error {
		return p.onNode.Call(ctx, session.VerbCount, struct{}{}, &counters[i])
	})
	return counters, err
}

// busy returns the CPU time of both nodes together.
func (g *ground) busy(ctx context.Context) (time.Duration, error) {
	c, err := g.snapshot(ctx)
	return c[0].Busy + c[1].Busy, err
}
