package testbed

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/kubeveil/kubeveil/pkg/bench/session"
	"github.com/kubeveil/kubeveil/pkg/remote"
)

const (
	// startPods is the number of pods that FirstBytes starts.
	startPods = 5
	// startPatience bounds the time from the creation of a pod to its first bytes.
	startPatience = 2 * time.Minute
)

// FirstBytes starts pods on one node, one after the other. For each it returns the seconds from the
// request that created the pod until a pod on the other node received its first bytes. FirstBytes
// works on any pod network and removes everything that it made.
func FirstBytes(ctx context.Context, c *remote.Cluster,
	nodes []string) (seconds []float64, err error) {
	b := &Bed{cluster: c}
	if err := b.chooseNodes(ctx, nodes); err != nil {
		return nil, err
	}
	if b.ns, err = c.Namespace(ctx, "kubeveil-bench", remote.Privileged); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, b.Close(context.WithoutCancel(ctx))) }()
	server := b.Server()
	server.pod = &remote.Pod{Name: "server", Node: server.Name,
		Command: []string{tool, "pod-serve"}}
	if err := b.ns.Run(ctx, server.pod); err != nil {
		return nil, err
	}
	var ok bool
	if server.PodAddr, ok = server.pod.Addr(true); !ok {
		return nil, fmt.Errorf("pod %s has no IPv4 address: the suite measures over IPv4 only",
			server.pod.Name)
	}
	server.InPod = openSession(ctx, server.pod)
	return b.FirstBytes(ctx)
}

// FirstBytes is the function FirstBytes on the nodes of a Bed.
func (b *Bed) FirstBytes(ctx context.Context) (seconds []float64, err error) {
	for i := range startPods {
		took, err := b.firstByte(ctx, fmt.Sprintf("first-%d", i))
		if err != nil {
			return nil, err
		}
		seconds = append(seconds, took.Seconds())
	}
	return seconds, nil
}

// firstByte starts a pod and returns the time until the server has received the pod's name from it.
func (b *Bed) firstByte(ctx context.Context, name string) (time.Duration, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, startPatience,
		fmt.Errorf("pod %s did not reach the server within %v", name, startPatience))
	defer cancel()
	server := b.Server()
	heard := make(chan error, 1)
	go func() {
		heard <- server.InPod.Call(ctx, session.VerbAwait, session.Await{Token: name}, nil)
	}()
	// The server listens before the pod exists, so that the pod waits only for its network.
	if err := server.InPod.Call(ctx, session.VerbSelf, struct{}{}, nil); err != nil {
		return 0, err
	}
	to := netip.AddrPortFrom(server.PodAddr, session.AwaitPort)
	p := &remote.Pod{Name: name, Node: b.Client().Name,
		Command: []string{tool, "tcp-first", "--to", to.String(), "--token", name}}
	ran := make(chan error, 1)
	began := time.Now()
	go func() { ran <- b.ns.Run(ctx, p) }()
	err := <-heard
	took := time.Since(began)
	err = errors.Join(err, <-ran)
	if err != nil {
		return 0, fmt.Errorf("first bytes of pod %s: %w", name, err)
	}
	return took, p.Delete(ctx)
}
