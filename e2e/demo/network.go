package demo

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kubeveil/kubeveil/e2e/demo/capture"
	"github.com/kubeveil/kubeveil/e2e/lab"
	"github.com/kubeveil/kubeveil/e2e/lab/traffic"
	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/bench"
	"github.com/kubeveil/kubeveil/pkg/bench/load"
	"github.com/kubeveil/kubeveil/pkg/bench/report"
	"github.com/kubeveil/kubeveil/pkg/engine/aead"
	"github.com/kubeveil/kubeveil/pkg/telemetry/admin"
	"github.com/kubeveil/kubeveil/pkg/tunnel"
	"github.com/kubeveil/kubeveil/pkg/worker"
)

// network is one of the clusters, with a pod on each node.
type network struct {
	title string
	lab   *lab.Lab
	pods  []*lab.Pod
	// balanced and measured are the addresses of two services (see serve). They are empty for the
	// reference network.
	balanced, measured []netip.Addr

	capture report.Capture
	server  *load.Server
}

// nodes is the number of nodes per cluster, and shownFrames the number of frames of each network
// that the report shows.
const nodes, shownFrames = 3, 3

func (d *demo) newNetwork(ctx context.Context, kind lab.Network) (*network, error) {
	n := &network{title: map[lab.Network]string{
		lab.Clear: "Reference network: ptp and plain routes", lab.Veil: "Kubeveil"}[kind]}
	opts := lab.Options{Nodes: nodes, Network: kind}
	if kind == lab.Veil {
		opts.NoAPIServer, opts.Engine = !d.api, worker.EngineKubeveil
	}
	if kind == lab.Veil && d.api {
		opts.VeildConfig = ourSettings()
	}

	var err error
	if n.lab, err = lab.New(ctx, opts); err != nil {
		return nil, err
	}

	n.capture = report.Capture{Title: n.title, Leaks: kind == lab.Clear,
		Canary: []byte(strings.TrimSuffix(n.lab.Canary, "-"))}
	if n.lab.Control != nil {
		if err := n.lab.Control.AddNamespace(ctx, namespace); err != nil {
			return nil, errors.Join(err, n.close())
		}
	}
	for _, node := range n.lab.Nodes() {
		pod, err := n.addPod(ctx, node)
		if err != nil {
			return nil, errors.Join(err, n.close())
		}
		if _, err := traffic.Echo(ctx, pod); err != nil {
			return nil, errors.Join(err, n.close())
		}
		n.pods = append(n.pods, pod)
	}
	if kind == lab.Veil && d.api {
		if err := n.serve(ctx); err != nil {
			return nil, errors.Join(err, n.close())
		}
	}

	d.say("%s: %d nodes, a pod on each, added in %s", n.title, nodes, added(n.pods))
	return n, nil
}

// podName returns the name of a node's pod.
func podName(node *lab.Node) string { return fmt.Sprintf("demo-%d", node.Number) }

// addPod makes a pod on a node. With an API server, it also makes the Pod object, which policies
// need. The plugins of the reference network do not know names of pods.
func (n *network) addPod(ctx context.Context, node *lab.Node) (*lab.Pod, error) {
	switch {
	case n.lab.Control != nil:
		return node.RunPod(ctx, namespace, podName(node), nil)
	case n.capture.Leaks:
		return node.AddPod(ctx, "demo", lab.PodOptions{})
	}
	return node.AddPod(ctx, "demo", lab.PodOptions{Object: &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: namespace, Name: podName(node), UID: types.UID(podName(node))}}})
}

// newBeside makes a cluster of two nodes with a pod on each. wireguard-go serves its tunnels.
func (d *demo) newBeside(ctx context.Context) (*network, error) {
	n := &network{title: "Kubeveil on wireguard-go"}
	var err error
	if n.lab, err = lab.New(ctx, lab.Options{NoAPIServer: true,
		Engine: worker.EngineWireGuardGo}); err != nil {
		return nil, err
	}
	for _, node := range n.lab.Nodes() {
		pod, err := n.addPod(ctx, node)
		if err != nil {
			return nil, errors.Join(err, n.close())
		}
		n.pods = append(n.pods, pod)
	}
	if _, err := traffic.Echo(ctx, n.pods[1]); err != nil {
		return nil, errors.Join(err, n.close())
	}
	if _, err := d.messagesTo(ctx, n.pods[0], n.pods[1].Addrs); err != nil {
		return nil, errors.Join(err, n.close())
	}
	d.say("%s: two nodes, a pod on each, to compare with", n.title)
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

// talk makes every pod exchange messages with every other pod, and keeps some frames from the wire.
func (d *demo) talk(ctx context.Context, n *network) error {
	want := func(frame []byte) bool { return strings.Contains(string(frame), n.lab.Canary) }
	if !n.capture.Leaks {
		want = func(frame []byte) bool { return inTunnel(frame) && ofMessage(frame) }
	}

	s, err := capture.Start(n.lab.Nodes()[0].NetNS(), "eth0", want, shownFrames)
	if err != nil {
		return fmt.Errorf("%s: %w", n.title, err)
	}

	messages, served, err := d.messages(ctx, n)
	n.capture.Frames = s.Close()
	if err == nil && len(n.capture.Frames) == 0 {
		err = fmt.Errorf("the capture on %s has none of the frames that were expected",
			n.lab.Nodes()[0].Name)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", n.title, err)
	}

	d.say("%s: %d messages exchanged between all pods, TCP and UDP, IPv4 and IPv6, all answered",
		n.title, messages)
	if served > 0 {
		d.say("%s: %d messages to the addresses of a service with backends on two other nodes, "+
			"all answered", n.title, served)
		d.report.Notes = append(d.report.Notes,
			fmt.Sprintf("While the sniffers listened, the pod of the first node also sent %d "+
				"messages to the addresses of a service. Its backends, the pods of the two other "+
				"nodes, answered all. There is no kube-proxy: eBPF at the pod's sockets replaces "+
				"the service's address by a backend's address.", served))
	}

	return nil
}

// inTunnel reports whether a frame is a tunnel packet.
func inTunnel(frame []byte) bool {
	p, ok := capture.Parse(frame)
	return ok && p.Proto == capture.UDP &&
		(p.DstPort == abi.TunnelPort || p.SrcPort == abi.TunnelPort)
}

// ofMessage reports whether a tunnel packet has about the size of the messages. Handshakes and
// keepalives are shorter, probes of the path MTU are longer.
func ofMessage(frame []byte) bool { return len(frame) > 250 && len(frame) < 450 }

// messages makes every pod exchange messages with every other pod, and the pod of the first node
// exchange messages with the service. It returns the numbers of answered messages.
func (d *demo) messages(ctx context.Context, n *network) (pods, service int, err error) {
	for _, from := range n.pods {
		for _, to := range n.pods {
			if from == to {
				continue
			}
			answered, err := d.messagesTo(ctx, from, to.Addrs)
			if err != nil {
				return 0, 0, err
			}
			pods += answered
		}
	}
	service, err = d.messagesTo(ctx, n.pods[0], n.balanced)
	return pods, service, err
}

// perAddr is the number of messages to an address over each protocol.
const perAddr = 20

// messagesTo exchanges messages with a server at each of its addresses, over UDP and TCP. It
// returns the number of answered messages.
func (d *demo) messagesTo(ctx context.Context, from *lab.Pod, to []netip.Addr) (int, error) {
	messages := 0
	for _, addr := range to {
		for _, proto := range []string{"udp", "tcp"} {
			got, err := d.exchange(ctx, from, traffic.Exchange{Proto: proto, To: addr,
				Count: perAddr, Size: 240})
			if err != nil {
				return 0, fmt.Errorf("%s to %s by %s: %w", from.ID, addr, proto, err)
			}
			messages += got.Received
		}
	}
	return messages, nil
}

// exchange exchanges messages. It retries for up to 20 s, because a node is ready before all other
// nodes have its key.
func (d *demo) exchange(ctx context.Context, from *lab.Pod,
	x traffic.Exchange) (got traffic.Sent, err error) {
	err = lab.Until(ctx, 20*time.Second, func() error {
		got, err = traffic.Send(ctx, from, x)
		return err
	})
	return got, err
}

const (
	caseTCP     = "tcp_1_stream"
	caseService = "tcp_1_stream_service"
	caseBeside  = "tcp_1_stream_wireguard_go"
)

var labels = map[string]string{caseTCP: "TCP, 1 stream, pod to pod",
	caseService: "TCP, 1 stream, pod to service",
	caseBeside:  "TCP, 1 stream, beside wireguard-go instead of our engine"}

// notes returns the notes below the figures of the report.
func (d *demo) notes() []string {
	notes := []string{
		"Not part of this demonstration: traffic between host processes of nodes and traffic " +
			"from pods to the outside (both in clear by design), volumes, and a kernel with " +
			"WireGuard. docs/security.md lists every exception.",
		"The sniffers listen on the bridge between the nodes and on each of its ports, from " +
			"before the first node exists. Speed was measured after they had ended.",
		"The frames were captured on the underlay link of the first node; the dump begins with " +
			"the Ethernet header. The text that all pods send is marked.",
		"Between namespaces there is no wire: the network in clear runs at the speed of memory, " +
			"and encryption shares two cores with everything else. `make bench-lab` " +
			"compares over " +
			"a link of limited rate and against a bare WireGuard.",
	}

	if d.api {
		notes = append(notes, "Pod to service uses the address of a service whose only backend is "+
			"that pod. Both rows have the same figure in clear, from pod to pod, because the "+
			"reference network has no services. `make bench-service` compares with the rules of "+
			"kube-proxy, haproxy and no service at all.",
			"The other cluster has one node and an API server of its own on the same network, and "+
				"the same range of services. `veilctl site link` linked both, without its check of "+
				"the path, which needs kubelets. A veil-site ran in each. It ended before speed was "+
				"measured.",
			"Forbidden packets are counted at the receiving pod's link, and as drops in its node's "+
				"kernel. Afterwards the allowed pod sends by the same path: once it is answered, no "+
				"forbidden packet can still be on its way.")
	}
	return notes
}

// noteTunnel adds to the report which WireGuard was measured, and sets userspace.
func (d *demo) noteTunnel(ctx context.Context) error {
	s, err := admin.Fetch(ctx, d.ours.lab.Nodes()[0].Path(abi.AdminSocket))
	if err != nil {
		return err
	}
	note := "The tunnel here is the kernel's WireGuard."
	if len(s.Devices) > 0 && s.Devices[0].Kind == string(tunnel.Userspace) {
		d.userspace = true
		note = "The tunnel here is the userspace worker veil-wg with its own engine, because " +
			"this kernel has no WireGuard. docs/performance.md has figures of WireGuard in the " +
			"kernel."
	}
	d.say("%s", note)
	d.report.Lead += " " + note
	d.result.Facts = map[string]string{"veild": s.Version}
	if tier, err := aead.Choose(); d.userspace && tier != nil && err == nil {
		d.result.Facts["AEAD of veil-wg"] = tier.Name
	}
	return nil
}

// measure measures the TCP throughput of the networks in interleaved rounds.
func (d *demo) measure(ctx context.Context) (err error) {
	networks := []*network{d.ours, d.clear}
	if d.userspace {
		if d.beside, err = d.newBeside(ctx); err != nil {
			return err
		}
		networks = append(networks, d.beside)
	}
	for _, n := range networks {
		if n.server, err = load.Serve(ctx, n.pods[1].NetNS()); err != nil {
			return err
		}
	}

	side := func(name string, n *network, to netip.Addr) bench.Side {
		f := load.Flow{To: to, Duration: 2 * time.Second,
			Run: func(ctx context.Context, args ...string) ([]byte, error) {
				// Run it in the node's cgroup, too, because services are translated there.
				return n.pods[0].Exec(ctx, "iperf3", args...)
			}}
		return bench.Side{Name: name, Measure: func(ctx context.Context) (bench.Sample, error) {
			return f.TCP(ctx, 1)
		}}
	}

	const pod, service, inClear, beside = "pod to pod", "pod to service", "in clear", "wireguard-go"
	sides := []bench.Side{side(pod, d.ours, d.ours.pods[1].Addr(false)),
		side(inClear, d.clear, d.clear.pods[1].Addr(false))}
	pairs := []bench.Pair{{Name: caseTCP, Ours: pod, Base: inClear}}
	if d.api {
		sides = append(sides, side(service, d.ours, d.ours.measured[0]))
		pairs = append(pairs, bench.Pair{Name: caseService, Ours: service, Base: inClear})
	}
	if d.beside != nil {
		sides = append(sides, side(beside, d.beside, d.beside.pods[1].Addr(false)))
		pairs = append(pairs, bench.Pair{Name: caseBeside, Ours: pod, Base: beside})
	}
	r := bench.Runner{Rounds: 3, Seed: bench.NewSeed(), Progress: d.say}
	cases, err := r.RunGroups(ctx, []bench.Group{{
		Name: caseTCP, MTU: 1500, Unit: bench.Mbps,
		Sides: sides, Pairs: pairs,
	}})

	d.result.Cases = cases
	d.report.Notes = append(d.report.Notes,
		fmt.Sprintf("%d rounds, order drawn with seed %d.", r.Rounds, r.Seed))
	return err
}
