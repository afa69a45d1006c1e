package lab

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubeveil/kubeveil/e2e/lab"
	"github.com/kubeveil/kubeveil/pkg/bench"
	"github.com/kubeveil/kubeveil/pkg/bench/load"
	"github.com/kubeveil/kubeveil/pkg/config"
)

// paced is the rate of part between in Mbit/s, which all sides carry without a queue.
const paced = 40

// between compares datagrams between pods of two nodes: with programs of services at links, with
// the fast path of pods, with pods that a policy selects, and with none of these. The last is
// measured twice, which shows the noise. It also compares datagrams to a service whose pod is on
// another node: from a pod, and from a client outside through a node without the pod.
func (r *run) between(ctx context.Context) (err error) {
	const mtu = 1500
	sides := map[string]*pair{}
	for _, side := range []string{sideNoServices, sideKernel, sideFastPath, sideJudged} {
		l, err := lab.New(ctx, lab.Options{Family: lab.IPv4, UnderlayMTU: mtu, Offloads: true,
			VeildConfig: servicesOf(side)})
		if err != nil {
			return err
		}
		defer l.Close()
		p, err := r.newPair(ctx, l, side == sideJudged)
		defer p.close()
		if err != nil {
			return err
		}
		if err := r.endOracle(l, false); err != nil {
			return err
		}
		err = p.waitPath(ctx, side == sideFastPath)
		if err == nil && side != sideNoServices {
			err = p.publish(ctx)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", side, err)
		}
		sides[side] = p
	}

	var groups []bench.Group
	for _, size := range []struct {
		name    string
		payload int
	}{{caseBetweenLarge, 1300}, {caseBetweenSmall, 100}} {
		by := func(side string, way func(*pair, time.Duration) load.Flow) bench.Measure {
			return func(ctx context.Context) (bench.Sample, error) {
				p := sides[side]
				flow := way(p, r.tcp)
				flow.Busy = p.spent
				d, err := flow.UDP(ctx, paced*float64(size.payload)/1300, size.payload)
				return bench.Sample{Value: d.CPU * float64(size.payload) / 1e3}, err
			}
		}
		measure := func(side string) bench.Measure { return by(side, (*pair).flow) }
		groups = append(groups, bench.Group{Name: size.name, MTU: mtu, Unit: bench.Microsecond,
			Sides: []bench.Side{{Name: sideNoServices, Measure: measure(sideNoServices)},
				{Name: sideAgain, Measure: measure(sideNoServices)},
				{Name: sideKernel, Measure: measure(sideKernel)},
				{Name: sideFastPath, Measure: measure(sideFastPath)},
				{Name: sideJudged, Measure: measure(sideJudged)},
				{Name: sideService, Measure: by(sideFastPath, (*pair).toService)},
				{Name: sideOutsideKernel, Measure: by(sideKernel, (*pair).fromOutside)},
				{Name: sideOutside, Measure: by(sideFastPath, (*pair).fromOutside)}},
			Pairs: []bench.Pair{
				{Name: size.name + "_control", Ours: sideAgain, Base: sideNoServices},
				{Name: size.name + "_kernel", Ours: sideKernel, Base: sideNoServices},
				{Name: size.name + "_fast", Ours: sideFastPath, Base: sideNoServices},
				{Name: size.name + "_fast_to_kernel", Ours: sideFastPath, Base: sideKernel},
				{Name: size.name + "_judged", Ours: sideJudged, Base: sideNoServices},
				{Name: size.name + "_service", Ours: sideService, Base: sideFastPath},
				{Name: size.name + "_outside", Ours: sideOutside, Base: sideOutsideKernel}},
			Turns: 2})
	}
	return r.Interleave(ctx, groups)
}

// spent returns the CPU time of the engines on both nodes and of the clients of this process. Most
// of the kernel's work for a packet counts as work of the process that sends it, so other programs
// of the machine change the difference of two calls little.
func (p *pair) spent(context.Context) (time.Duration, error) {
	var clients unix.Rusage
	err := unix.Getrusage(unix.RUSAGE_CHILDREN, &clients)
	sum := time.Duration(clients.Utime.Nano() + clients.Stime.Nano())
	for _, n := range p.lab.Nodes()[:2] {
		engines, e := n.Processes("veil-wg")
		err = errors.Join(err, e)
		for _, engine := range engines {
			spent, e := load.ProcessCPU(engine.Pid)
			sum, err = sum+spent, errors.Join(err, e)
		}
	}
	return sum, err
}

// servicesOf returns the configuration of a side of part between.
func servicesOf(side string) map[string]any {
	routing := config.HostRoutingKernel
	switch side {
	case sideNoServices:
		return nil
	case sideFastPath, sideJudged:
		routing = config.HostRoutingEBPF
	}
	c := map[string]any{"serviceProxy": config.ServiceProxyEBPF, "services": map[string]any{
		"limits": map[string]any{"backendSlots": 1 << 18}, "hostRouting": routing}}
	if side == sideJudged {
		c["policy"] = config.PolicyKubernetes
	}
	return c
}

// toService returns a flow from the first pod to the service of publish.
func (p *pair) toService(d time.Duration) load.Flow {
	return load.Flow{From: p.pods[0].NetNS(), To: p.service, Duration: d}
}

// fromOutside returns a flow from a client outside to the service, through the first node.
func (p *pair) fromOutside(d time.Duration) load.Flow {
	return load.Flow{From: p.lab.Outside.NetNS(), To: p.lab.Nodes()[0].Addrs[0], Duration: d}
}

// publish makes a service for the server of the pair, which clients outside reach at the first
// node's address, and waits until both ways work.
func (p *pair) publish(ctx context.Context) error {
	const name = "bench"
	var ports []corev1.ServicePort
	slice := &discoveryv1.EndpointSlice{AddressType: discoveryv1.AddressTypeIPv4,
		ObjectMeta: metav1.ObjectMeta{Name: name,
			Labels: map[string]string{discoveryv1.LabelServiceName: name}},
		Endpoints: []discoveryv1.Endpoint{{Addresses: []string{p.pods[1].Addr(false).String()},
			NodeName: &p.pods[1].Node.Name}}}
	for _, protocol := range []corev1.Protocol{corev1.ProtocolTCP, corev1.ProtocolUDP} {
		port := strings.ToLower(string(protocol))
		ports = append(ports, corev1.ServicePort{Name: port, Protocol: protocol, Port: load.Port})
		slice.Ports = append(slice.Ports, discoveryv1.EndpointPort{Name: &port,
			Protocol: &protocol, Port: new(int32(load.Port))})
	}

	c := p.lab.Control.Client
	s, err := c.CoreV1().Services("default").Create(ctx, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.ServiceSpec{Ports: ports,
			ExternalIPs: []string{p.lab.Nodes()[0].Addrs[0].String()}}}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	if p.service, err = netip.ParseAddr(s.Spec.ClusterIP); err != nil {
		return err
	}
	if _, err := c.DiscoveryV1().EndpointSlices("default").Create(ctx, slice,
		metav1.CreateOptions{}); err != nil {
		return err
	}

	return lab.Until(ctx, 30*time.Second, func() error {
		_, err := p.toService(time.Second).UDP(ctx, 1, 1000)
		_, outside := p.fromOutside(time.Second).UDP(ctx, 1, 1000)
		return errors.Join(err, outside)
	})
}

// waitPath waits until the pods' datagrams pass netfilter on both nodes, or bypass it if fast is
// set. Pods get the fast path some seconds after they exist.
func (p *pair) waitPath(ctx context.Context, fast bool) error {
	const rules = "table inet bench { chain f { type filter hook forward priority 0; " +
		"meta l4proto udp counter; }; }"
	return lab.Until(ctx, 30*time.Second, func() error {
		for _, n := range p.lab.Nodes()[:2] {
			if _, err := n.Exec(ctx, "nft", rules); err != nil {
				return err
			}
		}

		_, err := p.flow(time.Second).UDP(ctx, 1, 1000)
		for _, n := range p.lab.Nodes()[:2] {
			out, e := n.Exec(ctx, "nft", "list", "table", "inet", "bench")
			if met := !strings.Contains(string(out), "packets 0 "); e == nil && met == fast {
				e = fmt.Errorf("%s: netfilter met datagrams: %t", n.Name, met)
			}
			_, gone := n.Exec(ctx, "nft", "delete", "table", "inet", "bench")
			err = errors.Join(err, e, gone)
		}
		return err
	})
}
