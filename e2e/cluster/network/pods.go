package network

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubeveil/kubeveil/pkg/remote"
)

func podToPod(ctx context.Context, s *Session) error {
	a, b, err := s.twoPods(ctx)
	if err != nil {
		return err
	}
	s.note("%s on %s, %s on %s, %d families", a.Addrs, a.Node, b.Addrs, b.Node, len(b.Addrs))
	return errors.Join(s.bothFamilies(b.Addrs), s.bothFamilies(a.Addrs), talkBoth(ctx, a, b))
}

// bothFamilies is an error unless these are an IPv4 and an IPv6 address; clusters of one family are
// for others than the lab.
func (s *Session) bothFamilies(addrs []netip.Addr) error {
	if s.Lab != nil && (len(addrs) != 2 || addrs[0].Is4() == addrs[1].Is4()) {
		return fmt.Errorf("addresses %v, want one of each family", addrs)
	}
	return nil
}

// serve makes a service of the shared pods of that name, in their namespace. It has a name of its
// own: a service of a name that was just deleted takes over endpoint slices that the garbage
// collector then deletes.
func (s *Session) serve(ctx context.Context, pod string,
	kind corev1.ServiceType) (*remote.Service, error) {
	s.served++
	service := &remote.Service{Name: fmt.Sprintf("%s-%s-%d", pod, strings.ToLower(string(kind)),
		s.served), Pods: map[string]string{"app": pod}, Port: remote.EchoPort, Type: kind}
	if err := s.shared.Serve(ctx, service); err != nil {
		return nil, err
	}
	return service, s.bothFamilies(service.Addrs)
}

func podToService(ctx context.Context, s *Session) error {
	a, _, err := s.twoPods(ctx)
	if err != nil {
		return err
	}
	service, err := s.serve(ctx, "b", corev1.ServiceTypeClusterIP)
	if err != nil {
		return err
	}
	s.note("service %s", service.Addrs)
	return talk(ctx, a, service.Port, service.Addrs...)
}

// names are resolved by the cluster's DNS, from both nodes: from at least one of them it is over
// the tunnel.
func names(ctx context.Context, s *Session) error {
	a, b, err := s.twoPods(ctx)
	if err != nil {
		return err
	}
	_, err = s.Client.CoreV1().Services(metav1.NamespaceSystem).Get(ctx, "kube-dns",
		metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return skip("the cluster has no service kube-dns")
	}
	if err != nil {
		return err
	}
	if err := s.waitDNS(ctx); err != nil {
		return err
	}

	service, err := s.serve(ctx, "b", corev1.ServiceTypeClusterIP)
	if err != nil {
		return err
	}
	headless := &remote.Service{Name: "pods", Pods: map[string]string{"app": "b"},
		Headless: true}
	if err := s.shared.Serve(ctx, headless); err != nil {
		return err
	}

	var targets []string
	for _, family := range familiesOf(b.Addrs) {
		for _, name := range []string{service.Name, service.Name + "." + s.shared.Name +
			".svc.cluster.local.", headless.Name} {
			targets = append(targets, by(family, name)...)
		}
	}

	for _, addr := range b.Addrs {
		targets = append(targets, by("", dashed(addr)+"."+s.shared.Name+".pod.cluster.local.")...)
	}
	return atOnce(
		func() error { return meet(ctx, a, targets...) },
		func() error { return meet(ctx, b, targets...) },
	)
}

// familiesOf are the ends of the names of protocols that choose the families of addresses: "4",
// "6".
func familiesOf(addrs []netip.Addr) (out []string) {
	for _, a := range addrs {
		out = append(out, map[bool]string{true: "4", false: "6"}[a.Is4()])
	}
	return out
}

// by returns targets of meet for the echo server of a name by one family, or by any ("").
func by(family, name string) (targets []string) {
	for _, proto := range protocols {
		targets = append(targets, fmt.Sprintf("%s%s/%s:%d", proto, family, name,
			remote.EchoPort))
	}
	return targets
}

// dashed is an address as it is written in the name of a pod.
func dashed(a netip.Addr) string {
	return strings.NewReplacer(".", "-", ":", "-").Replace(a.String())
}

func podToHostPort(ctx context.Context, s *Session) error {
	a, b, err := s.twoPods(ctx)
	if err != nil {
		return err
	}
	addrs, err := s.nodeAddrs(ctx, b.Node)
	if err != nil {
		return err
	}
	return talk(ctx, a, hostPort, addrs...)
}

// nodeAddrs are the addresses of a node, one of each family that pods have.
func (s *Session) nodeAddrs(ctx context.Context, name string) ([]netip.Addr, error) {
	nodes, err := s.Nodes(ctx)
	if err != nil {
		return nil, err
	}
	for _, n := range nodes {
		if n.Name == name {
			return n.Addrs, s.bothFamilies(n.Addrs)
		}
	}
	return nil, fmt.Errorf("node %s is gone", name)
}

// onNode returns an echo server among the processes of the node of the pair's first pod. It makes
// the server if there is none.
func (s *Session) onNode(ctx context.Context) (*remote.Pod, error) {
	if s.host == nil {
		s.host = &remote.Pod{Name: "host", Node: s.pair[0].Node, HostNetwork: true,
			Listen: hostEchoPort}
	}
	return s.host, s.keep(ctx, s.shared, s.host)
}

// hostEchoPort is where that one listens.
const hostEchoPort = 17001

// nodePort is reached from a pod at each node, from a process of a node at its own, and from
// outside at each. From one node to another's it would be host to host, which is not in the tunnel
// (docs/security.md).
func nodePort(ctx context.Context, s *Session) error {
	a, b, err := s.twoPods(ctx)
	if err != nil {
		return err
	}
	service, err := s.serve(ctx, "b", corev1.ServiceTypeNodePort)
	if err != nil {
		return err
	}
	host, err := s.onNode(ctx)
	if err != nil {
		return err
	}

	near, err := s.nodeAddrs(ctx, a.Node)
	if err != nil {
		return err
	}
	far, err := s.nodeAddrs(ctx, b.Node)
	if err != nil {
		return err
	}

	all := append(near[:len(near):len(near)], far...)
	err = atOnce(
		func() error { return meet(ctx, a, nodePorts(service, all)...) },
		func() error { return meet(ctx, host, nodePorts(service, near)...) },
	)
	if s.Lab == nil {
		s.note("not from outside: this run has no host there")
		return err
	}

	for _, addr := range all {
		for _, proto := range protocols {
			to := netip.AddrPortFrom(addr, uint16(service.NodePorts[proto]))
			err = errors.Join(err, remote.Until(ctx,
				fmt.Sprintf("from outside to %s by %s", to, proto), meeting,
				func(ctx context.Context) error {
					return s.Lab.OutsideSend(ctx, proto, to)
				}))
		}
	}

	return err
}

// nodePorts returns targets of meet for a service's ports at addresses of nodes.
func nodePorts(service *remote.Service, at []netip.Addr) []string {
	var targets []string
	for _, addr := range at {
		for _, proto := range protocols {
			targets = append(targets, proto+"/"+netip.AddrPortFrom(addr,
				uint16(service.NodePorts[proto])).String())
		}
	}
	return targets
}

func nodeToPod(ctx context.Context, s *Session) error {
	a, b, err := s.twoPods(ctx)
	if err != nil {
		return err
	}
	host, err := s.onNode(ctx)
	if err != nil {
		return err
	}
	addrs, err := s.nodeAddrs(ctx, a.Node)
	if err != nil {
		return err
	}
	all := []func() error{
		func() error { return talk(ctx, host, remote.EchoPort, b.Addrs...) },
		func() error { return talk(ctx, b, hostEchoPort, addrs...) },
	}
	if s.Lab != nil {
		control := s.Lab.ControlAddrs()
		all = append(all,
			func() error { return talk(ctx, a, remote.EchoPort, control...) },
			func() error { return talk(ctx, b, remote.EchoPort, control...) })
		s.note("the control plane's host, %s, too", control)
	}
	return atOnce(all...)
}

func kubernetesService(ctx context.Context, s *Session) error {
	n, err := s.namespace(ctx)
	if err != nil {
		return err
	}
	service, err := s.Client.CoreV1().Services(metav1.NamespaceDefault).Get(ctx, "kubernetes",
		metav1.GetOptions{})
	if err != nil {
		return err
	}
	p := &remote.Pod{Name: "asks", Token: true}
	if err := n.Run(ctx, p); err != nil {
		return err
	}
	out, err := p.Exec(ctx, "veil-tools", "https-get", "--url",
		"https://"+service.Spec.ClusterIP+"/version")
	if err != nil {
		return err
	}
	if !strings.Contains(string(out), "gitVersion") {
		return fmt.Errorf("the API server returns %q", out)
	}
	return nil
}

// egress goes to a host outside, whose answers come back; that it had its node's address is seen on
// the wire, where a pod's would be a leak.
func egress(ctx context.Context, s *Session) error {
	a, b, err := s.twoPods(ctx)
	if err != nil {
		return err
	}
	if err := s.bothFamilies(s.Lab.OutsideAddrs()); err != nil {
		return err
	}
	targets := append([]string{"--canary=" + s.Lab.OutsideCanary()},
		echoes(remote.EchoPort, s.Lab.OutsideAddrs())...)
	return atOnce(
		func() error { return meet(ctx, a, targets...) },
		func() error { return meet(ctx, b, targets...) },
	)
}

// waitDNS waits until the pods of the cluster's DNS are there and Ready.
func (s *Session) waitDNS(ctx context.Context) error {
	return remote.Until(ctx, "pods of the cluster's DNS", remote.PodPatience,
		func(ctx context.Context) error {
			pods, err := s.Client.CoreV1().Pods(metav1.NamespaceSystem).List(ctx,
				metav1.ListOptions{LabelSelector: "k8s-app=kube-dns"})
			if err != nil {
				return err
			}
			for _, p := range pods.Items {
				ready := false
				for _, c := range p.Status.Conditions {
					ready = ready || c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
				}
				if !ready {
					return fmt.Errorf("pod %s is not Ready", p.Name)
				}
			}
			if len(pods.Items) == 0 {
				return errors.New("there is none")
			}
			return nil
		})
}
