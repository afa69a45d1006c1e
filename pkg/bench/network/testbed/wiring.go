package testbed

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/kubeveil/kubeveil/pkg/bench/session"
	"github.com/kubeveil/kubeveil/pkg/remote"
)

// barePort is the UDP port of the bare device. It differs from Kubeveil's port.
const barePort = 51899

// Sides: Kubeveil, the kernel's WireGuard configured by hand, and the network in clear.
const (
	Ours  = "ours"
	Bare  = "bare"
	Clear = "clear"
)

// Plan holds the addresses of the interfaces of the sides clear and bare on one node.
type Plan struct {
	ClearPod, ClearGateway, BarePod, BareGateway netip.Addr
}

// ServiceAddrs returns the service addresses of the sides clear and bare, keyed by side. They are
// among the first sixteen addresses of the prefix.
func ServiceAddrs(prefix netip.Prefix) map[string]netip.Addr {
	first := prefix.Masked().Addr().Next()
	return map[string]netip.Addr{Clear: first, Bare: first.Next()}
}

// nodePrefixBits is the prefix length of a node's part of the prefix. A cloud's route table needs
// one route for it.
const nodePrefixBits = 28

// newPlan returns the plan of node i (0 or 1). Node 0 has the second sixteen addresses of the
// prefix, node 1 the third.
func newPlan(prefix netip.Prefix, i int) (Plan, error) {
	if !prefix.IsValid() || !prefix.Addr().Is4() || prefix.Bits() > 26 {
		return Plan{}, fmt.Errorf("prefix %v: write an IPv4 prefix of /26 or larger", prefix)
	}
	base := prefix.Masked().Addr().As4()
	at := func(n int) netip.Addr {
		a := base
		a[3] += byte(1<<(32-nodePrefixBits)*(i+1) + n)
		return netip.AddrFrom4(a)
	}
	return Plan{ClearGateway: at(1), ClearPod: at(2), BareGateway: at(3), BarePod: at(4)}, nil
}

// Wiring is the state of the interfaces of the sides clear and bare.
type Wiring struct {
	// Plans are the addresses on the client's node and on the server's node.
	Plans [2]Plan
	// Services holds the addresses of the server's services, keyed by side.
	Services map[string]netip.Addr
	// NoBare is the reason why there is no bare WireGuard; "" means that there is one.
	NoBare string
}

// Serve makes the services of the server. The service of our side is an ordinary one. The service
// in clear has an address of the prefix as its LoadBalancer IP, which kube-proxy translates. A
// cluster IP would not work, because Kubeveil's guard refuses the cluster's service range on a link
// that does not belong to a pod. The service address of bare WireGuard is translated in the
// namespace of the bare device.
func (b *Bed) Serve(ctx context.Context, prefix netip.Prefix) (*Wiring, error) {
	w := &Wiring{Services: map[string]netip.Addr{}}
	for i := range w.Plans {
		var err error
		if w.Plans[i], err = newPlan(prefix, i); err != nil {
			return nil, err
		}
	}
	w.Services = ServiceAddrs(prefix)
	var err error
	if w.Services[Ours], err = b.serveOurs(ctx); err != nil {
		return nil, err
	}
	return w, b.serveClear(ctx, w.Services[Clear], w.Plans[1].ClearPod)
}

// servicePorts returns the ports of the server's pod, for a Service and for an EndpointSlice.
func servicePorts() (ports []corev1.ServicePort, endpoints []discoveryv1.EndpointPort) {
	for _, p := range []struct {
		name  string
		proto corev1.Protocol
		port  int32
	}{
		{"iperf-tcp", corev1.ProtocolTCP, session.IperfPort},
		{"iperf-udp", corev1.ProtocolUDP, session.IperfPort},
		{"round-trips", corev1.ProtocolTCP, session.RoundTripsPort},
	} {
		ports = append(ports, corev1.ServicePort{Name: p.name, Protocol: p.proto, Port: p.port,
			TargetPort: intstr.FromInt32(p.port)})
		endpoints = append(endpoints, discoveryv1.EndpointPort{Name: &p.name, Protocol: &p.proto,
			Port: &p.port})
	}
	return ports, endpoints
}

func (b *Bed) serveOurs(ctx context.Context) (netip.Addr, error) {
	s := &remote.Service{Name: "server-" + Ours,
		Pods: map[string]string{"app": b.Server().pod.Name}, Change: singleStack}
	if err := b.ns.Serve(ctx, s); err != nil {
		return netip.Addr{}, err
	}
	addr, ok := s.Addr(true)
	if !ok {
		return netip.Addr{}, fmt.Errorf("service %s has no IPv4 address", s.Name)
	}
	return addr, nil
}

// singleStack sets the server's ports in a service and restricts it to IPv4.
func singleStack(o *corev1.Service) {
	single := corev1.IPFamilyPolicySingleStack
	o.Spec.Ports, _ = servicePorts()
	o.Spec.IPFamilyPolicy, o.Spec.IPFamilies = &single, []corev1.IPFamily{corev1.IPv4Protocol}
}

// loadBalancerClass is a class that no controller serves: the suite writes the status itself.
const loadBalancerClass = "kubeveil.io/bench"

func (b *Bed) serveClear(ctx context.Context, addr, endpoint netip.Addr) error {
	const name = "server-" + Clear
	_, endpoints := servicePorts()
	_, err := b.cluster.Client.DiscoveryV1().EndpointSlices(b.ns.Name).Create(ctx,
		&discoveryv1.EndpointSlice{
			ObjectMeta: metav1.ObjectMeta{Name: name,
				Labels: map[string]string{discoveryv1.LabelServiceName: name,
					discoveryv1.LabelManagedBy: "kubeveil-bench"}},
			AddressType: discoveryv1.AddressTypeIPv4, Ports: endpoints,
			Endpoints: []discoveryv1.Endpoint{{Addresses: []string{endpoint.String()}}},
		}, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("endpoints of service %s: %w", name, err)
	}

	err = b.ns.Serve(ctx, &remote.Service{Name: name, Type: corev1.ServiceTypeLoadBalancer,
		Change: func(o *corev1.Service) {
			singleStack(o)
			class, no := loadBalancerClass, false
			o.Spec.Selector, o.Spec.LoadBalancerClass, o.Spec.AllocateLoadBalancerNodePorts = nil,
				&class, &no
		}})
	if err != nil {
		return err
	}

	services := b.cluster.Client.CoreV1().Services(b.ns.Name)
	o, err := services.Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("service %s: %w", name, err)
	}

	o.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: addr.String()}}
	if _, err := services.UpdateStatus(ctx, o, metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("address of service %s: %w", name, err)
	}

	return nil
}

// MTUs holds the MTU of the underlay and the MTU of pods that follows from it, in bytes.
type MTUs struct{ Underlay, Pod int }

// Wire makes the interfaces of the sides clear and bare on both nodes, with the MTUs of m. It
// replaces interfaces of an earlier call.
func (b *Bed) Wire(ctx context.Context, w *Wiring, m MTUs) error {
	keys, err := b.tunnels(ctx, w, m)
	if err != nil {
		return err
	}

	return b.Both(func(i int, p *Place) error {
		mine, other, peer := w.Plans[i], w.Plans[1-i], b.Nodes[1-i]
		var self session.Self
		if err := p.InPod.Call(ctx, session.VerbSelf, struct{}{}, &self); err != nil {
			return err
		}

		clearTo, bareTo := []netip.Addr{other.ClearPod}, []netip.Addr{other.BarePod}
		if p == b.Client() {
			clearTo, bareTo = append(clearTo, w.Services[Clear]),
				append(bareTo, w.Services[Bare])
		} else {
			// kube-proxy masquerades packets from outside the pod ranges, so answers go to the
			// client's node.
			clearTo = append(clearTo, peer.NodeAddr)
		}

		wire := session.Wire{
			NetNS: self.NetNS, Other: other.ClearPod, Via: peer.NodeAddr,
			Clear: session.Link{Host: session.HostClearLink, Pod: session.ClearLink,
				MTU:  m.Underlay,
				Addr: mine.ClearPod, Gateway: mine.ClearGateway, Routes: clearTo},
		}
		if w.NoBare == "" {
			wire.Bare = &session.Link{Host: session.HostBareLink, Pod: session.BareLink, MTU: m.Pod,
				Addr: mine.BarePod, Gateway: mine.BareGateway, Routes: bareTo}
			wire.Peer = session.Peer{PublicKey: keys[1-i],
				Endpoint: netip.AddrPortFrom(peer.NodeAddr, barePort), Pod: other.BarePod}
		}

		return p.OnNode.Call(ctx, session.VerbWire, wire, nil)
	})
}

// tunnels makes the bare devices and returns their public keys. If a node cannot make its device,
// for example on a kernel without WireGuard, tunnels sets w.NoBare and returns no error.
func (b *Bed) tunnels(ctx context.Context, w *Wiring, m MTUs) (keys [2]string, err error) {
	if w.NoBare != "" {
		return keys, nil
	}
	err = b.Both(func(i int, p *Place) error {
		t := session.Tunnel{Port: barePort, MTU: m.Pod, Service: w.Services[Bare],
			Endpoint: w.Plans[1].BarePod}
		if len(p.Platform.Tunnels) > 0 {
			t.Like = p.Platform.Tunnels[0]
		}
		return p.OnNode.Call(ctx, session.VerbTunnel, t, &keys[i])
	})
	if err != nil && ctx.Err() == nil {
		w.NoBare = err.Error()
		return keys, nil
	}
	return keys, err
}

// mtuPatience bounds the wait until pods have the MTU that follows from the MTU of the underlay.
const mtuPatience = 90 * time.Second

// ReadMTU returns the present MTUs. It returns an error if the nodes' MTUs differ.
func (b *Bed) ReadMTU(ctx context.Context) (m MTUs, err error) {
	var all [2]MTUs
	err = b.Both(func(i int, p *Place) error {
		var self session.Self
		if err := p.InPod.Call(ctx, session.VerbSelf, struct{}{}, &self); err != nil {
			return err
		}
		var platform session.Platform
		if err := p.OnNode.Call(ctx, session.VerbPlatform, session.Ask{NodeAddr: p.NodeAddr},
			&platform); err != nil {
			return err
		}
		p.Platform = platform
		all[i] = MTUs{platform.UnderlayMTU, self.MTU}
		return nil
	})
	if err == nil && all[0] != all[1] {
		err = fmt.Errorf("the nodes have MTUs %d and %d, their pods %d and %d", all[0].Underlay,
			all[1].Underlay, all[0].Pod, all[1].Pod)
	}
	return all[0], err
}

// WaitMTU waits until the MTUs of the underlay and of pods have grown by the same number of bytes,
// to the new MTU of the underlay. before holds the MTUs before the change.
func (b *Bed) WaitMTU(ctx context.Context, before MTUs, underlay int) (MTUs, error) {
	want := MTUs{underlay, before.Pod + underlay - before.Underlay}
	var got MTUs
	err := remote.Until(ctx, fmt.Sprintf("pods follow the MTU %d", underlay), mtuPatience,
		func(ctx context.Context) (err error) {
			if got, err = b.ReadMTU(ctx); err == nil && got != want {
				err = fmt.Errorf("underlay and pods have %+v, want %+v", got, want)
			}
			return err
		})
	return got, err
}
