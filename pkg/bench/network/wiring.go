package network

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

// plan holds the addresses of the interfaces of the sides clear and bare on one node.
type plan struct {
	clearPod, clearGateway, barePod, bareGateway netip.Addr
}

// serviceAddrs returns the service addresses of the sides clear and bare, keyed by side. They are
// among the first sixteen addresses of the prefix.
func serviceAddrs(prefix netip.Prefix) map[string]netip.Addr {
	first := prefix.Masked().Addr().Next()
	return map[string]netip.Addr{sideClear: first, sideBare: first.Next()}
}

// nodePrefixBits is the prefix length of a node's part of Options.Prefix. A cloud's route table
// needs one route for it.
const nodePrefixBits = 28

// newPlan returns the plan of node i (0 or 1). Node 0 has the second sixteen addresses of the
// prefix, node 1 the third.
func newPlan(prefix netip.Prefix, i int) (plan, error) {
	if !prefix.IsValid() || !prefix.Addr().Is4() || prefix.Bits() > 26 {
		return plan{}, fmt.Errorf("prefix %v: write an IPv4 prefix of /26 or larger", prefix)
	}
	base := prefix.Masked().Addr().As4()
	at := func(n int) netip.Addr {
		a := base
		a[3] += byte(1<<(32-nodePrefixBits)*(i+1) + n)
		return netip.AddrFrom4(a)
	}
	return plan{clearGateway: at(1), clearPod: at(2), bareGateway: at(3), barePod: at(4)}, nil
}

// wiring is the state of the interfaces of the sides clear and bare.
type wiring struct {
	plans [2]plan
	// services holds the addresses of the server's services, keyed by side.
	services map[string]netip.Addr
	// noBare is the reason why there is no bare WireGuard; "" means that there is one.
	noBare string
}

// serve makes the services of the server. The service of our side is an ordinary one. The service
// in clear has an address of Options.Prefix as its LoadBalancer IP, which kube-proxy translates. A
// cluster IP would not work, because Kubeveil's guard refuses the cluster's service range on a link
// that does not belong to a pod. The service address of bare WireGuard is translated in the
// namespace of the bare device.
func (g *ground) serve(ctx context.Context, prefix netip.Prefix) (*wiring, error) {
	w := &wiring{services: map[string]netip.Addr{}}
	for i := range w.plans {
		var err error
		if w.plans[i], err = newPlan(prefix, i); err != nil {
			return nil, err
		}
	}
	w.services = serviceAddrs(prefix)
	var err error
	if w.services[sideOurs], err = g.serveOurs(ctx); err != nil {
		return nil, err
	}
	return w, g.serveClear(ctx, w.services[sideClear], w.plans[1].clearPod)
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

func (g *ground) serveOurs(ctx context.Context) (netip.Addr, error) {
	s := &remote.Service{Name: "server-" + sideOurs,
		Pods: map[string]string{"app": g.server().pod.Name}, Change: singleStack}
	if err := g.ns.Serve(ctx, s); err != nil {
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

func (g *ground) serveClear(ctx context.Context, addr, endpoint netip.Addr) error {
	const name = "server-" + sideClear
	_, endpoints := servicePorts()
	_, err := g.cluster.Client.DiscoveryV1().EndpointSlices(g.ns.Name).Create(ctx,
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

	err = g.ns.Serve(ctx, &remote.Service{Name: name, Type: corev1.ServiceTypeLoadBalancer,
		Change: func(o *corev1.Service) {
			singleStack(o)
			class, no := loadBalancerClass, false
			o.Spec.Selector, o.Spec.LoadBalancerClass, o.Spec.AllocateLoadBalancerNodePorts = nil,
				&class, &no
		}})
	if err != nil {
		return err
	}

	services := g.cluster.Client.CoreV1().Services(g.ns.Name)
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

// mtus holds the MTU of the underlay and the MTU of pods that follows from it, in bytes.
type mtus struct{ underlay, pod int }

// wire makes the interfaces of the sides clear and bare on both nodes, with the MTUs of m. It
// replaces interfaces of an earlier call.
func (g *ground) wire(ctx context.Context, w *wiring, m mtus) error {
	keys, err := g.tunnels(ctx, w, m)
	if err != nil {
		return err
	}

	return g.both(func(i int, p *place) error {
		mine, other, peer := w.plans[i], w.plans[1-i], g.nodes[1-i]
		var self session.Self
		if err := p.inPod.Call(ctx, session.VerbSelf, struct{}{}, &self); err != nil {
			return err
		}

		clearTo, bareTo := []netip.Addr{other.clearPod}, []netip.Addr{other.barePod}
		if p == g.client() {
			clearTo, bareTo = append(clearTo, w.services[sideClear]),
				append(bareTo, w.services[sideBare])
		} else {
			// kube-proxy masquerades packets from outside the pod ranges, so answers go to the
			// client's node.
			clearTo = append(clearTo, peer.addr)
		}

		wire := session.Wire{
			NetNS: self.NetNS, Other: other.clearPod, Via: peer.addr,
			Clear: session.Link{Host: session.HostClearLink, Pod: session.ClearLink,
				MTU:  m.underlay,
				Addr: mine.clearPod, Gateway: mine.clearGateway, Routes: clearTo},
		}
		if w.noBare == "" {
			wire.Bare = &session.Link{Host: session.HostBareLink, Pod: session.BareLink, MTU: m.pod,
				Addr: mine.barePod, Gateway: mine.bareGateway, Routes: bareTo}
			wire.Peer = session.Peer{PublicKey: keys[1-i],
				Endpoint: netip.AddrPortFrom(peer.addr, barePort), Pod: other.barePod}
		}

		return p.onNode.Call(ctx, session.VerbWire, wire, nil)
	})
}

// tunnels makes the bare devices and returns their public keys. If a node cannot make its device,
// for example on a kernel without WireGuard, tunnels sets w.noBare and returns no error.
func (g *ground) tunnels(ctx context.Context, w *wiring, m mtus) (keys [2]string, err error) {
	if w.noBare != "" {
		return keys, nil
	}
	err = g.both(func(i int, p *place) error {
		t := session.Tunnel{Port: barePort, MTU: m.pod, Service: w.services[sideBare],
			Endpoint: w.plans[1].barePod}
		if len(p.platform.Tunnels) > 0 {
			t.Like = p.platform.Tunnels[0]
		}
		return p.onNode.Call(ctx, session.VerbTunnel, t, &keys[i])
	})
	if err != nil && ctx.Err() == nil {
		w.noBare = err.Error()
		return keys, nil
	}
	return keys, err
}

// mtuPatience bounds the wait until pods have the MTU that follows from the MTU of the underlay.
const mtuPatience = 90 * time.Second

// readMTU returns the present MTUs. It returns an error if the nodes' MTUs differ.
func (g *ground) readMTU(ctx context.Context) (m mtus, err error) {
	var all [2]mtus
	err = g.both(func(i int, p *place) error {
		var self session.Self
		if err := p.inPod.Call(ctx, session.VerbSelf, struct{}{}, &self); err != nil {
			return err
		}
		var platform session.Platform
		if err := p.onNode.Call(ctx, session.VerbPlatform, session.Ask{NodeAddr: p.addr},
			&platform); err != nil {
			return err
		}
		p.platform = platform
		all[i] = mtus{platform.UnderlayMTU, self.MTU}
		return nil
	})
	if err == nil && all[0] != all[1] {
		err = fmt.Errorf("the nodes have MTUs %d and %d, their pods %d and %d", all[0].underlay,
			all[1].underlay, all[0].pod, all[1].pod)
	}
	return all[0], err
}

// waitMTU waits until the MTUs of the underlay and of pods have grown by the same number of bytes,
// to the new MTU of the underlay. before holds the MTUs before the change.
func (g *ground) waitMTU(ctx context.Context, before mtus, underlay int) (mtus, error) {
	want := mtus{underlay, before.pod + underlay - before.underlay}
	var got mtus
	err := remote.Until(ctx, fmt.Sprintf("pods follow the MTU %d", underlay), mtuPatience,
		func(ctx context.Context) (err error) {
			if got, err = g.readMTU(ctx); err == nil && got != want {
				err = fmt.Errorf("underlay and pods have %+v, want %+v", got, want)
			}
			return err
		})
	return got, err
}
