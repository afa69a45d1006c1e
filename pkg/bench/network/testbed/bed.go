package testbed

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

// Bed is two nodes, each with a measured pod and a privileged pod. Make it with New.
type Bed struct {
	cluster *remote.Cluster
	ns      *remote.Namespace
	// Nodes holds the client's node and the server's node, in this order.
	Nodes [2]*Place
}

// Place is a node of a Bed with its pods and sessions.
type Place struct {
	remote.Node
	// NodeAddr is the node's InternalIP of IPv4.
	NodeAddr netip.Addr
	// Platform is the answer of VerbPlatform on the node.
	Platform session.Platform
	// PodAddr is the address of the measured pod.
	PodAddr netip.Addr
	// InPod is the session in the measured pod, OnNode the session in the privileged pod.
	InPod, OnNode *session.Session

	pod *remote.Pod
}

// Client returns the node whose pod sends.
func (b *Bed) Client() *Place { return b.Nodes[0] }

// Server returns the node whose pod answers.
func (b *Bed) Server() *Place { return b.Nodes[1] }

// New makes the namespace, the pods and the sessions. If it fails, it removes what it made.
func New(ctx context.Context, c *remote.Cluster, names []string) (*Bed, error) {
	b := &Bed{cluster: c}
	if err := b.make(ctx, names); err != nil {
		return nil, errors.Join(err, b.Close(context.WithoutCancel(ctx)))
	}
	return b, nil
}

func (b *Bed) make(ctx context.Context, names []string) (err error) {
	if err := b.chooseNodes(ctx, names); err != nil {
		return err
	}
	if b.ns, err = b.cluster.Namespace(ctx, "kubeveil-bench", remote.Privileged); err != nil {
		return err
	}
	return b.Both(func(i int, p *Place) error {
		return b.occupy(ctx, p, []string{"client", "server"}[i])
	})
}

// chooseNodes selects the named nodes, which must be Ready. Without names it selects the first two
// nodes that are Ready and schedulable. Named nodes need not be schedulable, because pods are bound
// to nodes without the scheduler.
func (b *Bed) chooseNodes(ctx context.Context, names []string) error {
	nodes, err := b.cluster.Nodes(ctx)
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
	for i := range b.Nodes {
		p := &Place{Node: chosen[i]}
		var ok bool
		if p.NodeAddr, ok = p.Addr(true); !ok {
			return fmt.Errorf("node %s has no IPv4 InternalIP: the suite measures over IPv4 only",
				p.Name)
		}
		b.Nodes[i] = p
	}
	return nil
}

// podCPU is the CPU request of a measured pod.
const podCPU = "500m"

// occupy starts both pods of a node and their sessions.
func (b *Bed) occupy(ctx context.Context, p *Place, role string) error {
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
		go func() { started <- b.ns.Run(ctx, pod) }()
	}

	if err := errors.Join(<-started, <-started); err != nil {
		return fmt.Errorf("node %s: %w", p.Name, err)
	}
	var ok bool
	if p.PodAddr, ok = p.pod.Addr(true); !ok {
		return fmt.Errorf("pod %s has no IPv4 address: the suite measures over IPv4 only",
			p.pod.Name)
	}

	p.InPod, p.OnNode = openSession(ctx, p.pod), openSession(ctx, agent)
	if err := p.OnNode.Call(ctx, session.VerbPlatform, session.Ask{NodeAddr: p.NodeAddr},
		&p.Platform); err != nil {
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

// closePatience bounds the time of Close.
const closePatience = 3 * time.Minute

// Close removes everything that the Bed made. It continues after errors and returns them joined.
func (b *Bed) Close(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, closePatience)
	defer cancel()
	var errs []error
	for _, p := range b.Nodes {
		if p == nil {
			continue
		}
		if p.OnNode != nil {
			errs = append(errs, p.OnNode.Call(ctx, session.VerbUnwire, struct{}{}, nil))
			p.OnNode.Close()
		}
		if p.InPod != nil {
			p.InPod.Close()
		}
	}
	if b.ns != nil {
		errs = append(errs, b.ns.Close(ctx))
	}
	return errors.Join(errs...)
}

// Both calls fn for both nodes at the same time, and returns the errors joined.
func (b *Bed) Both(fn func(i int, p *Place) error) error {
	done := make(chan error, len(b.Nodes))
	for i, p := range b.Nodes {
		go func() { done <- fn(i, p) }()
	}
	var errs []error
	for range b.Nodes {
		errs = append(errs, <-done)
	}
	return errors.Join(errs...)
}

// Snapshot reads the counters of both nodes.
func (b *Bed) Snapshot(ctx context.Context) (counters [2]session.Counters, err error) {
	err = b.Both(func(i int, p *Place) error {
		return p.OnNode.Call(ctx, session.VerbCount, struct{}{}, &counters[i])
	})
	return counters, err
}

// Busy returns the CPU time of both nodes together.
func (b *Bed) Busy(ctx context.Context) (time.Duration, error) {
	c, err := b.Snapshot(ctx)
	return c[0].Busy + c[1].Busy, err
}
