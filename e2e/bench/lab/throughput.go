package lab

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubeveil/kubeveil/e2e/bench/lab/baretunnel"
	"github.com/kubeveil/kubeveil/e2e/lab"
	"github.com/kubeveil/kubeveil/e2e/lab/traffic"
	"github.com/kubeveil/kubeveil/pkg/bench"
	"github.com/kubeveil/kubeveil/pkg/bench/load"
	"github.com/kubeveil/kubeveil/pkg/worker"
)

// maxLoss is the largest share of UDP datagrams that may be lost.
const maxLoss = 0.005

// pair holds a pod on each of two nodes of a lab, and an iperf3 server in the second pod.
type pair struct {
	lab    *lab.Lab
	pods   [2]*lab.Pod
	server *load.Server
	// service is the address of the service of publish.
	service netip.Addr
}

// newPair makes the pods, lets them exchange messages while the lab's leak oracle watches, and
// starts the server. If judged, a policy selects the pods and allows everything. It may return a
// pair beside an error; close it too.
func (r *run) newPair(ctx context.Context, l *lab.Lab, judged bool) (*pair, error) {
	p := &pair{lab: l}
	add := func(n *lab.Node) (*lab.Pod, error) {
		return n.AddPod(ctx, "bench", lab.PodOptions{})
	}

	if judged {
		const namespace = "bench"
		if err := allowAll(ctx, l, namespace); err != nil {
			return nil, err
		}
		add = func(n *lab.Node) (*lab.Pod, error) {
			return n.RunPod(ctx, namespace, n.Name, nil)
		}
	}

	for i, n := range l.Nodes()[:2] {
		pod, err := add(n)
		if err != nil {
			return nil, err
		}
		p.pods[i] = pod
	}
	echo, err := traffic.Echo(ctx, p.pods[1])
	if err != nil {
		return nil, err
	}
	// Repeat, because a node is ready before the other node has published its key.
	err = lab.Until(ctx, 20*time.Second, func() error {
		_, err := traffic.Send(ctx, p.pods[0], traffic.Exchange{To: p.pods[1].Addr(false)})
		return err
	})
	if err = errors.Join(err, echo.Kill(ctx)); err != nil {
		return nil, fmt.Errorf("pod to pod: %w", err)
	}
	p.server, err = load.Serve(ctx, p.pods[1].NetNS())
	return p, err
}

// allowAll makes a namespace with a policy that selects its pods and allows everything.
func allowAll(ctx context.Context, l *lab.Lab, namespace string) error {
	if err := l.Control.AddNamespace(ctx, namespace); err != nil {
		return err
	}
	all := networkingv1.NetworkPolicySpec{Ingress: []networkingv1.NetworkPolicyIngressRule{{}},
		Egress: []networkingv1.NetworkPolicyEgressRule{{}},
		PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress,
			networkingv1.PolicyTypeEgress}}
	_, err := l.Control.Client.NetworkingV1().NetworkPolicies(namespace).Create(ctx,
		&networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: "all"}, Spec: all},
		metav1.CreateOptions{})
	return err
}

// endOracle ends the leak oracle of a lab, because it uses CPU that is to be measured, and adds its
// counts to the result. control reports whether the lab's network is in clear.
func (r *run) endOracle(l *lab.Lab, control bool) error {
	seen, err := l.Oracle.Stop()
	if err != nil {
		return err
	}
	if r.Result.Leaks == nil {
		r.Result.Leaks = &bench.Leaks{}
	}
	if control {
		r.Result.Leaks.ControlPlaintext += seen.Plaintext
		return nil
	}
	r.Result.Leaks.Frames += seen.Frames
	r.Result.Leaks.Plaintext += seen.Plaintext
	return seen.Err()
}

func (p *pair) close() {
	if p != nil && p.server != nil {
		p.server.Close()
	}
}

func (p *pair) flow(d time.Duration) load.Flow {
	return load.Flow{From: p.pods[0].NetNS(), To: p.pods[1].Addr(false), Duration: d}
}

// podMTU returns the present MTU of the pods, or an error if their MTUs differ.
func (p *pair) podMTU(ctx context.Context) (int, error) {
	var mtus [2]int
	for i, pod := range p.pods {
		l, err := baretunnel.ReadLink(ctx, pod, "eth0")
		if err != nil {
			return 0, err
		}
		mtus[i] = l.MTU
	}
	if mtus[0] != mtus[1] {
		return 0, fmt.Errorf("pods have MTU %d and %d", mtus[0], mtus[1])
	}
	return mtus[0], nil
}

// udp returns a measure of the highest rate of UDP. Both sides share hint, so that their searches
// begin at the same rate.
func (r *run) udp(p *pair, mtu int, s load.Search, hint *float64) bench.Measure {
	return func(ctx context.Context) (bench.Sample, error) {
		s.Hint = *hint
		sample, err := p.flow(r.probe).HighestUDP(ctx, s, load.UDPPayload4(mtu))
		if err == nil {
			*hint = sample.Value
		}
		return sample, err
	}
}

// bare compares Kubeveil with wireguard-go at an underlay MTU of 9000. It then changes the MTU of
// the running lab to 1500 and compares again.
func (r *run) bare(ctx context.Context) (err error) {
	if err := baretunnel.Build(ctx, r.bin); err != nil {
		return err
	}
	l, err := lab.New(ctx, lab.Options{Family: lab.IPv4, UnderlayMTU: 9000, Offloads: true,
		Engine: worker.EngineWireGuardGo})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.Close()) }()
	p, err := r.newPair(ctx, l, false)
	defer p.close()
	if err != nil {
		return err
	}
	if err := r.endOracle(l, false); err != nil {
		return err
	}
	for _, mtu := range []int{9000, 1500} {
		if err := r.bareAt(ctx, p, mtu); err != nil {
			return err
		}
	}
	return nil
}

func (r *run) bareAt(ctx context.Context, p *pair, mtu int) (err error) {
	nodes := p.lab.Nodes()
	for _, n := range nodes {
		if err := n.SetUnderlayMTU(ctx, mtu); err != nil {
			return err
		}
	}

	want := mtu - tunnelOverhead4
	err = lab.Until(ctx, 60*time.Second, func() error {
		got, err := p.podMTU(ctx)
		if err == nil && got != want {
			err = fmt.Errorf("pods have MTU %d, want %d", got, want)
		}
		return err
	})
	if err != nil {
		return err
	}

	b, err := baretunnel.Start(ctx, r.bin, nodes)
	defer func() { err = errors.Join(err, b.Close(context.WithoutCancel(ctx))) }()
	if err != nil {
		return err
	}

	search := load.Search{Floor: 20, Ceiling: 20000, Loss: maxLoss, Step: 1.02}
	hint := 400.0
	comp := func(name string, m bench.Measure) bench.Comparison {
		return bench.Comparison{Name: name, MTU: mtu, Unit: bench.Mbps, BaseName: baseBare,
			Ours: b.Over(baretunnel.OursDevice, baretunnel.BareDevice, m),
			Base: b.Over(baretunnel.BareDevice, baretunnel.OursDevice, m)}
	}
	tcp := func(streams int) bench.Measure {
		return func(ctx context.Context) (bench.Sample, error) {
			return p.flow(r.tcp+time.Second).TCP(ctx, streams)
		}
	}

	err = r.Both(ctx, []bench.Comparison{comp(caseTCP1, tcp(1)),
		comp(caseTCP4, tcp(4)), comp(caseUDP, r.udp(p, want, search, &hint))})
	if err != nil {
		return err
	}

	for _, name := range []string{caseTCP1, caseTCP4, caseUDP} {
		r.Result.Gates = append(r.Result.Gates,
			bench.AtLeast(fmt.Sprintf("%s, MTU %d, against %s", labels[name], mtu, baseBare),
				r.Result.Find(name, mtu), 0.95))
	}

	return nil
}

// tunnelOverhead4 is the difference between the MTUs of an IPv4 underlay and of pods, in bytes.
const tunnelOverhead4 = 20 + 8 + 32
