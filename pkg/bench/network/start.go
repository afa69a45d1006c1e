package network

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/kubeveil/kubeveil/pkg/bench"
	"github.com/kubeveil/kubeveil/pkg/bench/session"
	"github.com/kubeveil/kubeveil/pkg/remote"
)

const (
	// startPods is the number of pods that firstBytes starts.
	startPods = 5
	// startPatience bounds the time from the creation of a pod to its first bytes.
	startPatience = 2 * time.Minute
)

// FirstBytes starts pods on one node, one after the other. For each it returns the seconds from the
// request that created the pod until a pod on the other node received its first bytes. FirstBytes
// works on any pod network and removes everything that it made.
func FirstBytes(ctx context.Context, c *remote.Cluster,
	nodes []string) (seconds []float64, err error) {
	g := &ground{cluster: c}
	if err := g.chooseNodes(ctx, nodes); err != nil {
		return nil, err
	}
	if g.ns, err = c.Namespace(ctx, "kubeveil-bench", remote.Privileged); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, g.close(context.WithoutCancel(ctx))) }()
	server := g.server()
	server.pod = &remote.Pod{Name: "server", Node: server.Name,
		Command: []string{tool, "pod-serve"}}
	if err := g.ns.Run(ctx, server.pod); err != nil {
		return nil, err
	}
	var ok bool
	if server.podAddr, ok = server.pod.Addr(true); !ok {
		return nil, fmt.Errorf("pod %s has no IPv4 address: the suite measures over IPv4 only",
			server.pod.Name)
	}
	server.inPod = openSession(ctx, server.pod)
	return g.firstBytes(ctx)
}

func (g *ground) firstBytes(ctx context.Context) (seconds []float64, err error) {
	for i := range startPods {
		took, err := g.firstByte(ctx, fmt.Sprintf("first-%d", i))
		if err != nil {
			return nil, err
		}
		seconds = append(seconds, took.Seconds())
	}
	return seconds, nil
}

// firstByte starts a pod and returns the time until the server has received the pod's name from it.
func (g *ground) firstByte(ctx context.Context, name string) (time.Duration, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, startPatience,
		fmt.Errorf("pod %s did not reach the server within %v", name, startPatience))
	defer cancel()
	server := g.server()
	heard := make(chan error, 1)
	go func() {
		heard <- server.inPod.Call(ctx, session.VerbAwait, session.Await{Token: name}, nil)
	}()
	// The server listens before the pod exists, so that the pod waits only for its network.
	if err := server.inPod.Call(ctx, session.VerbSelf, struct{}{}, nil); err != nil {
		return 0, err
	}
	to := netip.AddrPortFrom(server.podAddr, session.AwaitPort)
	p := &remote.Pod{Name: name, Node: g.client().Name,
		Command: []string{tool, "tcp-first", "--to", to.String(), "--token", name}}
	ran := make(chan error, 1)
	began := time.Now()
	go func() { ran <- g.ns.Run(ctx, p) }()
	err := <-heard
	took := time.Since(began)
	err = errors.Join(err, <-ran)
	if err != nil {
		return 0, fmt.Errorf("first bytes of pod %s: %w", name, err)
	}
	return took, p.Delete(ctx)
}

// starts adds the times from apply to all nodes Ready (Options.Ready), and measures the times from
// the creation of a pod to its first bytes.
func (s *run) starts(ctx context.Context) error {
	if len(s.Ready) > 0 {
		s.Result.Cases = append(s.Result.Cases, bench.Case{Name: caseReady, Unit: bench.Millisecond,
			Ours: bench.Summarize(inMillis(s.Ready))})
	} else {
		s.Skip(caseReady, "Kubeveil was installed already")
	}
	s.Progress("new pods to their first bytes across nodes")
	ours, err := s.ground.firstBytes(ctx)
	if err != nil {
		return err
	}
	c := bench.Case{Name: caseFirst, Unit: bench.Millisecond, Ours: bench.Summarize(inMillis(ours))}
	if len(s.Reference) == len(ours) {
		base := bench.Summarize(inMillis(s.Reference))
		ratio, err := bench.Ratios(ours, s.Reference)
		if err != nil {
			return err
		}
		c.Base, c.BaseName, c.Ratio = &base, baseRef, &ratio
	} else {
		s.Skip(caseFirst+" of the reference plugins", "the cluster never had them")
	}
	s.Result.Cases = append(s.Result.Cases, c)
	return nil
}

func inMillis(seconds []float64) []float64 {
	out := make([]float64, len(seconds))
	for i, s := range seconds {
		out[i] = s * 1000
	}
	return out
}
