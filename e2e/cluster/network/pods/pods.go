package pods

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubeveil/kubeveil/e2e/cluster/network/session"
	"github.com/kubeveil/kubeveil/pkg/remote"
)

// PodToPod makes two pods on two nodes talk, in both directions.
func PodToPod(ctx context.Context, s *session.Session) error {
	a, b, err := s.TwoPods(ctx)
	if err != nil {
		return err
	}
	s.Note("%s on %s, %s on %s, %d families", a.Addrs, a.Node, b.Addrs, b.Node, len(b.Addrs))
	return errors.Join(s.BothFamilies(b.Addrs), s.BothFamilies(a.Addrs),
		session.TalkBoth(ctx, a, b))
}

// PodToService makes a pod talk to a service.
func PodToService(ctx context.Context, s *session.Session) error {
	a, _, err := s.TwoPods(ctx)
	if err != nil {
		return err
	}
	service, err := s.Serve(ctx, "b", corev1.ServiceTypeClusterIP)
	if err != nil {
		return err
	}
	s.Note("service %s", service.Addrs)
	return session.Talk(ctx, a, service.Port, service.Addrs...)
}

// Names resolves names with the cluster's DNS from pods on two nodes. At least one of the pods
// reaches the DNS through the tunnel.
func Names(ctx context.Context, s *session.Session) error {
	a, b, err := s.TwoPods(ctx)
	if err != nil {
		return err
	}
	_, err = s.Client.CoreV1().Services(metav1.NamespaceSystem).Get(ctx, "kube-dns",
		metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return session.Skip("the cluster has no service kube-dns")
	}
	if err != nil {
		return err
	}
	if err := waitDNS(ctx, s); err != nil {
		return err
	}

	service, err := s.Serve(ctx, "b", corev1.ServiceTypeClusterIP)
	if err != nil {
		return err
	}
	headless := &remote.Service{Name: "pods", Pods: map[string]string{"app": "b"},
		Headless: true}
	if err := s.Shared.Serve(ctx, headless); err != nil {
		return err
	}

	var targets []string
	for _, family := range familiesOf(b.Addrs) {
		for _, name := range []string{service.Name, service.Name + "." + s.Shared.Name +
			".svc.cluster.local.", headless.Name} {
			targets = append(targets, session.By(family, name)...)
		}
	}

	for _, addr := range b.Addrs {
		targets = append(targets, session.By("",
			dashed(addr)+"."+s.Shared.Name+".pod.cluster.local.")...)
	}
	return session.AtOnce(
		func() error { return session.Meet(ctx, a, targets...) },
		func() error { return session.Meet(ctx, b, targets...) },
	)
}

// familiesOf returns "4" or "6" for each address, which selects its family if appended to a
// protocol.
func familiesOf(addrs []netip.Addr) (out []string) {
	for _, a := range addrs {
		out = append(out, map[bool]string{true: "4", false: "6"}[a.Is4()])
	}
	return out
}

// dashed returns an address in the form of pods' DNS names.
func dashed(a netip.Addr) string {
	return strings.NewReplacer(".", "-", ":", "-").Replace(a.String())
}

// PodToHostPort makes a pod talk to a host port of another node.
func PodToHostPort(ctx context.Context, s *session.Session) error {
	a, b, err := s.TwoPods(ctx)
	if err != nil {
		return err
	}
	addrs, err := nodeAddrs(ctx, s, b.Node)
	if err != nil {
		return err
	}
	return session.Talk(ctx, a, session.HostPort, addrs...)
}

// nodeAddrs returns the addresses of a node, one per family of the cluster.
func nodeAddrs(ctx context.Context, s *session.Session, name string) ([]netip.Addr, error) {
	nodes, err := s.Nodes(ctx)
	if err != nil {
		return nil, err
	}
	for _, n := range nodes {
		if n.Name == name {
			return n.Addrs, s.BothFamilies(n.Addrs)
		}
	}
	return nil, fmt.Errorf("no node %s", name)
}

// NodePort talks to a node port at each node from a pod and from outside, and from a process of a
// node at its own node. Traffic from a node to another node's port would be between hosts, which is
// not in the tunnel (docs/security.md).
func NodePort(ctx context.Context, s *session.Session) error {
	a, b, err := s.TwoPods(ctx)
	if err != nil {
		return err
	}
	service, err := s.Serve(ctx, "b", corev1.ServiceTypeNodePort)
	if err != nil {
		return err
	}
	host, err := s.OnNode(ctx)
	if err != nil {
		return err
	}

	near, err := nodeAddrs(ctx, s, a.Node)
	if err != nil {
		return err
	}
	far, err := nodeAddrs(ctx, s, b.Node)
	if err != nil {
		return err
	}

	all := append(near[:len(near):len(near)], far...)
	err = session.AtOnce(
		func() error { return session.Meet(ctx, a, nodePorts(service, all)...) },
		func() error { return session.Meet(ctx, host, nodePorts(service, near)...) },
	)
	if s.Lab == nil {
		s.Note("not from outside: this run has no host there")
		return err
	}

	for _, addr := range all {
		for _, proto := range session.Protocols {
			to := netip.AddrPortFrom(addr, uint16(service.NodePorts[proto]))
			err = errors.Join(err, remote.Until(ctx,
				fmt.Sprintf("from outside to %s by %s", to, proto), session.Meeting,
				func(ctx context.Context) error {
					return s.Lab.OutsideSend(ctx, proto, to)
				}))
		}
	}

	return err
}

// nodePorts returns targets of session.Meet for a service's node ports at addresses of nodes.
func nodePorts(service *remote.Service, at []netip.Addr) []string {
	var targets []string
	for _, addr := range at {
		for _, proto := range session.Protocols {
			targets = append(targets, proto+"/"+netip.AddrPortFrom(addr,
				uint16(service.NodePorts[proto])).String())
		}
	}
	return targets
}

// NodeToPod makes a process of a node and a pod of another node talk, in both directions.
func NodeToPod(ctx context.Context, s *session.Session) error {
	a, b, err := s.TwoPods(ctx)
	if err != nil {
		return err
	}
	host, err := s.OnNode(ctx)
	if err != nil {
		return err
	}
	addrs, err := nodeAddrs(ctx, s, a.Node)
	if err != nil {
		return err
	}
	all := []func() error{
		func() error { return session.Talk(ctx, host, remote.EchoPort, b.Addrs...) },
		func() error { return session.Talk(ctx, b, session.HostEchoPort, addrs...) },
	}
	if s.Lab != nil {
		control := s.Lab.ControlAddrs()
		all = append(all,
			func() error { return session.Talk(ctx, a, remote.EchoPort, control...) },
			func() error { return session.Talk(ctx, b, remote.EchoPort, control...) })
		s.Note("the control plane's host, %s, too", control)
	}
	return session.AtOnce(all...)
}

// KubernetesService makes a pod send a request to the API server through the service kubernetes.
func KubernetesService(ctx context.Context, s *session.Session) error {
	n, err := s.OwnNamespace(ctx)
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

// Egress makes pods talk to a host outside of the cluster. The oracle on the wire checks that the
// packets have their node's address: a pod's address there is a leak.
func Egress(ctx context.Context, s *session.Session) error {
	a, b, err := s.TwoPods(ctx)
	if err != nil {
		return err
	}
	if err := s.BothFamilies(s.Lab.OutsideAddrs()); err != nil {
		return err
	}
	targets := append([]string{"--canary=" + s.Lab.OutsideCanary()},
		session.Echoes(remote.EchoPort, s.Lab.OutsideAddrs())...)
	return session.AtOnce(
		func() error { return session.Meet(ctx, a, targets...) },
		func() error { return session.Meet(ctx, b, targets...) },
	)
}

// waitDNS waits until the pods of the cluster's DNS exist and are Ready.
func waitDNS(ctx context.Context, s *session.Session) error {
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
				return errors.New("no pod exists")
			}
			return nil
		})
}
