package connectivity

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/remote"
)

// stage holds the pods, nodes and watchers of a walk.
type stage struct {
	opts      WalkConfig
	cluster   *remote.Cluster
	namespace *remote.Namespace
	// nodes are node A and node B. all are the nodes of the cluster.
	nodes, all []remote.Node
	// client and local run on node A, server on node B.
	client, local, server *remote.Pod
	// hosts are the host-network pods of A and B.
	hosts   [2]*remote.Pod
	service *remote.Service
	// watchers read the uplinks of node A and node B. senders are the sessions in the pods that
	// send.
	watchers []watcher
	senders  map[*remote.Pod]sender
	// classes are the kinds of flow of this cluster.
	classes []class
	skipped []Skip
}

// chooseNodes returns node A and node B: the two named nodes, or the first two workers if names is
// empty.
func chooseNodes(all []remote.Node, names []string) ([]remote.Node, error) {
	var have, chosen []remote.Node
	var list []string
	for _, n := range all {
		if n.Ready && n.Schedulable {
			have = append(have, n)
		}
		list = append(list, n.Name+" ("+condition(n)+")")
	}

	there := "there are: " + strings.Join(list, ", ")
	if len(names) == 0 {
		if len(have) < 2 {
			return nil, fmt.Errorf("connectivity needs two Linux nodes that are Ready and "+
				"schedulable; %s", there)
		}
		return have[:2], nil
	}

	if len(names) != 2 || names[0] == names[1] {
		return nil, fmt.Errorf("nodes %s: name two; %s", strings.Join(names, ","), there)
	}

	for _, name := range names {
		i := slices.IndexFunc(all, func(n remote.Node) bool { return n.Name == name })
		if i < 0 {
			return nil, fmt.Errorf("node %s is not in the cluster; %s", name, there)
		}
		// Pods that set spec.nodeName ignore taints, but they need a kubelet that runs.
		if !all[i].Ready {
			return nil, fmt.Errorf("node %s is not Ready; %s", name, there)
		}
		chosen = append(chosen, all[i])
	}

	return chosen, nil
}

func condition(n remote.Node) string {
	switch {
	case !n.Ready:
		return "not Ready"
	case !n.Schedulable:
		return "not schedulable, or not Linux"
	}
	return "well"
}

// set creates the namespace, the pods and the service, and starts the watchers and senders. After
// an error, clear removes what exists.
func (s *stage) set(ctx context.Context) error {
	var err error
	if s.namespace, err = s.cluster.Namespace(ctx, s.opts.Namespace,
		remote.Privileged); err != nil {
		return err
	}

	a, b := s.nodes[0].Name, s.nodes[1].Name
	s.client = &remote.Pod{Name: "client", Node: a}
	s.local = &remote.Pod{Name: "local", Node: a}
	s.server = &remote.Pod{Name: "server", Node: b, HostPort: s.opts.HostPort}
	s.hosts = [2]*remote.Pod{s.hostPod("host-a", a), s.hostPod("host-b", b)}
	s.service = &remote.Service{Name: "server", Type: corev1.ServiceTypeNodePort}
	if err := s.namespace.RunAll(ctx, s.client, s.local, s.server, s.hosts[0],
		s.hosts[1]); err != nil {
		return err
	}

	if err := s.namespace.Serve(ctx, s.service); err != nil {
		return err
	}

	port := s.tunnelPort(ctx)
	for _, host := range s.hosts {
		s.watchers = append(s.watchers, startWatcher(ctx, host, s.all, port))
	}

	s.senders = map[*remote.Pod]sender{}
	for _, pod := range []*remote.Pod{s.client, s.hosts[0]} {
		s.senders[pod] = startSender(ctx, pod)
	}

	return s.addClasses(ctx)
}

// tunnelPort returns the UDP port of node A's tunnel: the option, or else the port in its VeilNode.
func (s *stage) tunnelPort(ctx context.Context) int {
	if s.opts.TunnelPort != 0 {
		return s.opts.TunnelPort
	}
	name := s.nodes[0].Name
	b, err := s.cluster.Client.Discovery().RESTClient().Get().AbsPath(
		"/apis/kubeveil.io/v1alpha1/veilnodes", name).DoRaw(ctx)
	port := 0
	if err == nil {
		port, err = endpointPort(b)
	}
	if err != nil {
		s.opts.Step(fmt.Sprintf("the tunnels' port is unknown (VeilNode %s: %v); using %d", name,
			err, abi.TunnelPort))
		return abi.TunnelPort
	}
	return port
}

// endpointPort returns the port of a VeilNode's first endpoint.
func endpointPort(object []byte) (int, error) {
	var node struct {
		Spec struct{ Endpoints []netip.AddrPort }
	}
	if err := json.Unmarshal(object, &node); err != nil {
		return 0, err
	}
	if len(node.Spec.Endpoints) == 0 {
		return 0, errors.New("it has no endpoint")
	}
	return int(node.Spec.Endpoints[0].Port()), nil
}

// hostPod returns a pod that echoes on the node's addresses and may read its uplinks.
func (s *stage) hostPod(name, node string) *remote.Pod {
	port := s.opts.HostPort + 1
	return &remote.Pod{
		Name: name, Node: node, HostNetwork: true,
		Args:         []string{"echo-serve", "--listen", fmt.Sprintf(":%d", port)},
		Capabilities: []corev1.Capability{"NET_RAW"},
		Change: func(p *corev1.Pod) {
			p.Spec.Containers[0].ReadinessProbe = &corev1.Probe{PeriodSeconds: 2,
				ProbeHandler: corev1.ProbeHandler{
					TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt(port)},
				}}
		},
	}
}

// addClasses adds the kinds of flow whose promise depends on the cluster.
func (s *stage) addClasses(ctx context.Context) error {
	s.classes = slices.Clone(classes)
	api, err := s.apiClass(ctx)
	if err != nil {
		return err
	}
	if api != nil {
		s.classes = append(s.classes, *api)
	}
	if len(s.opts.Outside) == 0 {
		s.skip("pod to the outside", "no address outside the cluster was given")
	} else {
		s.classes = append(s.classes, class{name: "pod to the outside", promise: Outside,
			from: client, to: toAddr(s.opts.Outside), knock: true})
	}
	for _, family := range []int{4, 6} {
		if _, ok := s.client.Addr(family == 4); !ok {
			s.skip(fmt.Sprintf("IPv%d of pods", family), "pods have no such address")
		}
		if _, ok := s.nodes[1].Addr(family == 4); !ok {
			s.skip(fmt.Sprintf("IPv%d of nodes", family),
				"node "+s.nodes[1].Name+" has no such InternalIP")
		}
	}
	return nil
}

func (s *stage) skip(what, why string) { s.skipped = append(s.skipped, Skip{what, why}) }

const apiName = "pod to the Kubernetes API's service"

// apiClass returns the kind of flow from a pod to the service of the API server. Its promise
// depends on the cluster, because the endpoints of the service may be nodes, or outside the
// cluster. Where the promise is unknown, apiClass records a skip and returns nil.
func (s *stage) apiClass(ctx context.Context) (*class, error) {
	service, err := s.cluster.Client.CoreV1().Services(metav1.NamespaceDefault).Get(ctx,
		"kubernetes", metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("service of the API server: %w", err)
	}
	list, err := s.cluster.Client.DiscoveryV1().EndpointSlices(metav1.NamespaceDefault).List(ctx,
		metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=kubernetes"})
	if err != nil {
		return nil, fmt.Errorf("endpoints of the API server: %w", err)
	}

	var endpoints, addrs []netip.Addr
	for _, slice := range list.Items {
		for _, e := range slice.Endpoints {
			for _, text := range e.Addresses {
				if addr, err := netip.ParseAddr(text); err == nil {
					endpoints = append(endpoints, addr)
				}
			}
		}
	}

	for _, text := range service.Spec.ClusterIPs {
		if addr, err := netip.ParseAddr(text); err == nil {
			addrs = append(addrs, addr)
		}
	}

	promise, err := apiPromise(endpoints, s.nodes[0], s.all)
	if err != nil {
		s.skip(apiName, err.Error())
		return nil, nil
	}

	var to []netip.AddrPort
	for _, a := range addrs {
		to = append(to, netip.AddrPortFrom(a, uint16(service.Spec.Ports[0].Port)))
	}

	return &class{name: apiName, promise: promise, from: client, to: toAddr(to), knock: true}, nil
}

// apiPromise returns the verdict that is promised for a flow from a pod on node a to the endpoints.
// It returns an error if the endpoints have different verdicts.
func apiPromise(endpoints []netip.Addr, a remote.Node, all []remote.Node) (Verdict, error) {
	var here, there, outside int
	for _, e := range endpoints {
		known := slices.ContainsFunc(all,
			func(n remote.Node) bool { return slices.Contains(n.Addrs, e) })
		switch {
		case slices.Contains(a.Addrs, e):
			here++
		case known:
			there++
		default:
			outside++
		}
	}
	switch len(endpoints) {
	case 0:
		return "", errors.New("it has no endpoint")
	case here:
		return Stays, nil
	case there:
		return Encrypted, nil
	case outside:
		return Outside, nil
	}
	return "", errors.New("its endpoints are of several kinds, and which one answers is not known")
}

// clear ends the watchers and senders and deletes the namespace.
func (s *stage) clear(ctx context.Context) error {
	for _, w := range s.watchers {
		w.session.Close()
	}
	for _, sender := range s.senders {
		sender.session.Close()
	}
	if s.namespace == nil {
		return nil
	}
	return s.namespace.Close(ctx)
}
