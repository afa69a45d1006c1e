package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/kubeveil/kubeveil/e2e/bench"
	"github.com/kubeveil/kubeveil/e2e/bench/load"
	"github.com/kubeveil/kubeveil/e2e/bench/report"
	"github.com/kubeveil/kubeveil/e2e/lab"
	"github.com/kubeveil/kubeveil/pkg/config"
)

// network is one of the two clusters with a pod on each node.
type network struct {
	title   string
	lab     *lab.Lab
	pods    []*lab.Pod
	capture report.Capture
	server  *load.Server
}

// nodes is how many a cluster has.
const nodes = 3

func (d *demo) newNetwork(ctx context.Context, kind lab.Network) (*network, error) {
	n := &network{title: map[lab.Network]string{lab.Clear: "Reference network: ptp and plain routes", lab.Veil: "Kubeveil"}[kind]}
	var err error
	if n.lab, err = lab.New(ctx, lab.Options{Nodes: nodes, Network: kind}); err != nil {
		return nil, err
	}
	n.capture = report.Capture{Title: n.title, Leaks: kind == lab.Clear, Canary: []byte(strings.TrimSuffix(n.lab.Canary, "-"))}
	for _, node := range n.lab.Nodes() {
		pod, err := node.AddPod(ctx, "demo", lab.PodOptions{})
		if err != nil {
			return nil, errors.Join(err, n.close())
		}
		if _, err := lab.Echo(ctx, pod); err != nil {
			return nil, errors.Join(err, n.close())
		}
		n.pods = append(n.pods, pod)
	}
	d.say("%s: %d nodes, a pod on each, added in %s", n.title, nodes, added(n.pods))
	return n, nil
}

func added(pods []*lab.Pod) string {
	var texts []string
	for _, p := range pods {
		texts = append(texts, p.Added.Round(time.Millisecond).String())
	}
	return strings.Join(texts, ", ")
}

// close removes the cluster and everything in it.
func (n *network) close() error {
	if n.server != nil {
		n.server.Close()
	}
	return n.lab.Close()
}

// talk lets every pod exchange messages with every other, and keeps frames from the wire.
func (d *demo) talk(ctx context.Context, n *network) error {
	want := func(frame []byte) bool { return strings.Contains(string(frame), n.lab.Canary) }
	if !n.capture.Leaks {
		// Data of the tunnel of about the messages' size: a handshake and a keepalive are shorter,
		// the probes of the path's MTU longer.
		want = func(frame []byte) bool {
			p, ok := parseFrame(frame)
			return ok && p.proto == udp && (p.dstPort == config.TunnelPort || p.srcPort == config.TunnelPort) && len(frame) > 250 && len(frame) < 450
		}
	}
	s, err := sniff(n.lab.Nodes()[0].NetNS(), "eth0", want, shownFrames)
	if err != nil {
		return fmt.Errorf("%s: %w", n.title, err)
	}
	messages := 0
	for _, from := range n.pods {
		for _, to := range n.pods {
			if from == to {
				continue
			}
			for _, addr := range to.Addrs {
				for _, proto := range []string{"udp", "tcp"} {
					got, err := d.exchange(ctx, from, lab.Exchange{Proto: proto, To: addr, Count: 20, Size: 240})
					if err != nil {
						s.close()
						return fmt.Errorf("%s: %s to %s by %s: %w", n.title, from.ID, addr, proto, err)
					}
					messages += got.Received
				}
			}
		}
	}
	for _, frame := range s.close() {
		n.capture.Frames = append(n.capture.Frames, report.Frame{Summary: summary(frame), Data: frame})
	}
	if len(n.capture.Frames) == 0 {
		return fmt.Errorf("%s: the capture on %s has none of the frames that were expected", n.title, n.lab.Nodes()[0].Name)
	}
	d.say("%s: %d messages exchanged between all pods, TCP and UDP, IPv4 and IPv6, all answered", n.title, messages)
	return nil
}

// exchange tries again for a while: a node is ready before all others have its key.
func (d *demo) exchange(ctx context.Context, from *lab.Pod, x lab.Exchange) (got lab.Sent, err error) {
	err = lab.Until(ctx, 20*time.Second, func() error {
		got, err = lab.Send(ctx, from, x)
		return err
	})
	return got, err
}

const caseTCP = "tcp_1_stream"

var labels = map[string]string{caseTCP: "TCP, 1 stream"}

var notes = []string{
	"The sniffers listen on the bridge between the nodes and on each of its ports, from before the first node exists. The figures were taken after they had ended.",
	"The frames were captured on the underlay link of the first node; the dump begins with the Ethernet header. Marked is the text that all pods send.",
	"Between namespaces there is no wire: the network in clear runs at the speed of memory, and encryption shares two cores with everything else. `make bench-lab` compares over a link of limited rate and against a bare WireGuard.",
}

// measure takes a few figures, both networks by turns.
func (d *demo) measure(ctx context.Context) error {
	const rounds = 3
	flow := func(n *network) (load.Flow, error) {
		var err error
		n.server, err = load.Serve(ctx, n.pods[1].NetNS())
		return load.Flow{From: n.pods[0].NetNS(), To: n.pods[1].Addr(false), Duration: 2 * time.Second}, err
	}
	ours, err := flow(d.ours)
	if err != nil {
		return err
	}
	base, err := flow(d.clear)
	if err != nil {
		return err
	}
	tcp := func(f load.Flow) bench.Measure {
		return func(ctx context.Context) (bench.Sample, error) { return f.TCP(ctx, 1) }
	}
	r := bench.Runner{Rounds: rounds, Seed: bench.NewSeed(), Progress: d.say}
	cases, err := r.Run(ctx, []bench.Comparison{{Name: caseTCP, MTU: 1500, Unit: bench.Mbps, Ours: tcp(ours), Base: tcp(base), BaseName: "in clear"}})
	d.result.Cases = cases
	d.report.Notes = append(d.report.Notes, fmt.Sprintf("%d rounds, order drawn with seed %d.", rounds, r.Seed))
	return err
}
