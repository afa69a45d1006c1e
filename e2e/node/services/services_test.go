package services_test

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/kubeveil/kubeveil/e2e/lab"
	"github.com/kubeveil/kubeveil/e2e/lab/labhost"
	"github.com/kubeveil/kubeveil/e2e/lab/traffic"
	"github.com/kubeveil/kubeveil/e2e/node/nodetest"
	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/config"
	"github.com/kubeveil/kubeveil/pkg/leak"
	"github.com/kubeveil/kubeveil/pkg/telemetry"
)

// serviceLab returns a lab whose veilds translate services.
func serviceLab(t *testing.T, hostRouting string) (context.Context, *lab.Lab) {
	t.Helper()
	return nodetest.NewLab(t, lab.Options{VeildConfig: map[string]any{
		"serviceProxy": "ebpf", "services": map[string]any{
			"limits": map[string]any{"backendSlots": 1 << 18}, "hostRouting": hostRouting},
		"linkLocalOutside": []string{},
	}})
}

// hostRoutings are both ways in which packets come to pods of a node.
var hostRoutings = []string{config.HostRoutingKernel, config.HostRoutingEBPF}

// The promises of services without a fault, and the scenarios of another load balancer's suite,
// each over a lab for each host routing. Each part has services of its own.
func TestServices(t *testing.T) {
	nodetest.Alone(t)
	for _, routing := range hostRoutings {
		t.Run(routing, func(t *testing.T) { services(t, routing) })
		t.Run("scenarios, "+routing, func(t *testing.T) { serviceScenarios(t, routing) })
	}
}

func services(t *testing.T, routing string) {
	before := machinePrograms(t)
	ctx, l := serviceLab(t, routing)
	t.Run("addresses", func(t *testing.T) { servicesByAddress(ctx, t, l) })
	t.Run("health of nodes", func(t *testing.T) { servesAsKubeProxy(ctx, t, l) })
	client, pods := namedPods(ctx, t, l, 1, three...)
	if s := nodetest.NodeStatus(ctx, t, l.Nodes()[0]).Services; s == nil ||
		s.HostRouting != routing {
		t.Errorf("status of services: %+v, want host routing %s", s, routing)
	}

	t.Run("netfilter between pods of a node", func(t *testing.T) {
		metByNetfilter(ctx, t, client, pods[0], routing == config.HostRoutingKernel)
	})
	t.Run("link-local addresses", func(t *testing.T) {
		nodetest.EchoAt(ctx, t, l.Outside)
		nodetest.EchoAt(ctx, t, client.Node)
		nodetest.LinkLocal(ctx, t, l, client, false)
	})
	t.Run("a balancer in front of nodes", func(t *testing.T) { balancerInFront(ctx, t, l, client) })
	var waits sync.WaitGroup // beside the others
	waits.Go(func() {
		t.Run("clients are forgotten", func(t *testing.T) {
			servicesForget(ctx, t, l, client, pods)
		})
	})
	t.Run("clients are remembered", func(t *testing.T) {
		servicesRemember(ctx, t, l, client, pods)
	})

	t.Run("of nodes", func(t *testing.T) { servicesOfNodes(ctx, t, l, client, pods) })
	t.Run("policies", func(t *testing.T) { servicesOfPolicies(ctx, t, l, client, pods) })
	t.Run("backends that go", func(t *testing.T) { servicesMoveDatagrams(ctx, t, l, client, pods) })
	waits.Wait()
	ownCgroups(t, l, before)
	noLeaksBetween(t, l)
	ownCgroups(t, nil, before)
}

// metByNetfilter checks whether rules of other programs on the pods' node see the packets between
// two pods, once the pods have been there for a few seconds.
func metByNetfilter(ctx context.Context, t *testing.T, client, server *lab.Pod, met bool) {
	rules := "table inet others { chain forward { type filter hook forward priority 0; "
	for _, a := range server.Addrs {
		family := "ip"
		if a.Is6() {
			family = "ip6"
		}
		rules += fmt.Sprintf("%s daddr %s counter; ", family, a)
	}
	err := lab.Until(ctx, 15*time.Second, func() error {
		nodetest.Run(ctx, t, client.Node, "nft", rules+"}; }")
		for _, a := range server.Addrs {
			answers(ctx, t, client, traffic.Question{To: netip.AddrPortFrom(a, traffic.NamePort),
				Count: 20}, everyone("a"))
		}
		list := nodetest.Run(ctx, t, client.Node, "nft", "list", "table", "inet", "others")
		nodetest.Run(ctx, t, client.Node, "nft", "delete", "table", "inet", "others")
		if silent := strings.Count(list, "packets 0 "); met && silent > 0 ||
			!met && silent < len(server.Addrs) {
			return fmt.Errorf("that rules of others see packets is to be %t:\n%s", met, list)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// noLeaksBetween is nodetest.NoLeaks for a lab in which pods of two nodes talked: the oracle must
// have seen frames of tunnels.
func noLeaksBetween(t *testing.T, l *lab.Lab) {
	t.Helper()
	nodetest.NoLeaks(t, l)
	if result, _ := l.Finish(); result.Kinds[leak.Tunnel] == 0 { // NoLeaks reports its error
		t.Error("the oracle saw no frame of a tunnel")
	}
}

// cgroupHooks are where programs for services are attached, and their neighbours.
var cgroupHooks = []ebpf.AttachType{
	ebpf.AttachCGroupInet4Connect, ebpf.AttachCGroupInet6Connect, ebpf.AttachCGroupUDP4Sendmsg,
	ebpf.AttachCGroupUDP6Sendmsg,
	ebpf.AttachCGroupUDP4Recvmsg, ebpf.AttachCGroupUDP6Recvmsg, ebpf.AttachCgroupInet4GetPeername,
	ebpf.AttachCgroupInet6GetPeername,
	ebpf.AttachCgroupInet4GetSockname, ebpf.AttachCgroupInet6GetSockname,
	ebpf.AttachCGroupInet4Bind, ebpf.AttachCGroupInet6Bind,
	ebpf.AttachCGroupInetSockCreate, ebpf.AttachCgroupInetSockRelease, ebpf.AttachCGroupInetIngress,
	ebpf.AttachCGroupInetEgress,
}

// cgroupPrograms returns the programs that are attached to a cgroup itself, by hook.
func cgroupPrograms(t *testing.T, path string) map[ebpf.AttachType][]ebpf.ProgramID {
	t.Helper()
	dir, err := os.Open(path)
	errtest.Must(t, err)
	defer dir.Close()
	out := map[ebpf.AttachType][]ebpf.ProgramID{}
	for _, hook := range cgroupHooks {
		r, err := link.QueryPrograms(link.QueryOptions{Target: int(dir.Fd()), Attach: hook})
		if err != nil {
			t.Fatalf("programs at %s, %v: %v", path, hook, err)
		}
		for _, p := range r.Programs {
			out[hook] = append(out[hook], p.ID)
		}
	}
	return out
}

// machinePrograms returns the programs at the root of this machine's tree of cgroups, where no lab
// may attach any.
func machinePrograms(t *testing.T) map[ebpf.AttachType][]ebpf.ProgramID {
	t.Helper()
	nettest.NeedRoot(t)
	tree, err := labhost.CgroupTree()
	if err != nil || tree == "" {
		t.Fatalf("a tree of cgroups of the second version: %q, %v", tree, err)
	}
	return cgroupPrograms(t, tree)
}

// ownCgroups checks that programs are attached at the cgroup roots of a lab's nodes, and that the
// programs at the machine's own root are unchanged. If l is nil, it checks the machine's root only.
func ownCgroups(t *testing.T, l *lab.Lab, before map[ebpf.AttachType][]ebpf.ProgramID) {
	t.Helper()
	if now := machinePrograms(t); !maps.EqualFunc(before, now, slices.Equal[[]ebpf.ProgramID]) {
		t.Errorf("programs at the root of the machine's cgroups were %v and are %v", before, now)
	}
	if l == nil {
		return
	}
	for _, n := range l.Nodes() {
		if at := cgroupPrograms(t, n.Path("/sys/fs/cgroup")); len(at) < 8 {
			t.Errorf("%s: programs at its root are %v, want them at eight hooks", n.Name, at)
		}
	}
}

// servicesByAddress: pods reach a backend on the other node by the service's address, and
// translated packets stay in the tunnel.
func servicesByAddress(ctx context.Context, t *testing.T, l *lab.Lab) {
	pods := nodetest.EchoPods(ctx, t, l)
	front, other := pods[0], pods[1]
	nodetest.Meet(ctx, t, front, other)
	web := createService(ctx, t, l, "web", corev1.ProtocolTCP, other)

	t.Run("a pod to a backend on the other node", func(t *testing.T) {
		for _, addr := range web.Spec.ClusterIPs {
			reach(ctx, t, front, addr)
		}
	})
	t.Run("a process of the host", func(t *testing.T) {
		for _, addr := range web.Spec.ClusterIPs {
			reach(ctx, t, l.Nodes()[0], addr)
		}
	})
	t.Run("the API server by its service", func(t *testing.T) {
		s, err := l.Control.Client.CoreV1().Services("default").Get(ctx, "kubernetes",
			metav1.GetOptions{})
		errtest.Must(t, err)
		status := nodetest.NodeStatus(ctx, t, l.Nodes()[0])
		if s := status.Services; s == nil || len(s.APIServers) != 1 || !s.APIServers[0].Up ||
			!s.Listed {
			t.Errorf("status of services: %+v", s)
		}
		t.Logf("service %s has %v", s.Spec.ClusterIP, status.Services.APIServers)
	})
	t.Run("no endpoints", func(t *testing.T) {
		none := createService(ctx, t, l, "none", corev1.ProtocolTCP)
		nodetest.WaitStatus(ctx, t, l.Nodes()[0], 10*time.Second, func(s telemetry.Status) error {
			if s.Services.Known < 3 {
				return fmt.Errorf("%d services", s.Services.Known)
			}
			return nil
		})
		// An earlier service may have been refused until it had endpoints.
		refused := func() (n uint64) {
			for _, c := range nodetest.NodeStatus(ctx, t, l.Nodes()[0]).Services.Refused {
				if c.Where == "socket" && c.What == "no_backend" {
					n = c.Count
				}
			}
			return n
		}
		before := refused()
		_, err := traffic.Send(ctx, front,
			traffic.Exchange{To: netip.MustParseAddr(none.Spec.ClusterIP), Port: 80, Count: 1})
		if err == nil || !strings.Contains(err.Error(), "refused") {
			t.Errorf("a connection: %v, want refused", err)
		}
		// The program at the socket refuses, so at once and without a packet.
		if got := refused() - before; got != 1 {
			t.Errorf("%d connections were refused by the socket, want 1", got)
		}
	})
	t.Run("a port of the host, without kube-proxy", func(t *testing.T) {
		nodetest.HostPort(ctx, t, l)
	})
	t.Run("a limit to what a pod gets", func(t *testing.T) { nodetest.Bandwidth(ctx, t, l, front) })
}

// reach talks to port 80 of a service from a pod or a host, and tries until it answers.
func reach(ctx context.Context, t *testing.T, from traffic.Place, addr string) {
	t.Helper()
	err := lab.Until(ctx, labhost.Slow(10*time.Second), func() error {
		_, err := traffic.Send(ctx, from, traffic.Exchange{To: netip.MustParseAddr(addr), Port: 80,
			Count: 1, Timeout: labhost.Slow(2 * time.Second)})
		return err
	})
	if err != nil {
		t.Errorf("service %s: %v", addr, err)
	}
}

// createService makes a service of all families whose endpoints are pods on port 7000.
func createService(ctx context.Context, t *testing.T, l *lab.Lab, name string,
	protocol corev1.Protocol, pods ...*lab.Pod) *corev1.Service {
	t.Helper()
	both := corev1.IPFamilyPolicyPreferDualStack
	s, err := l.Control.Client.CoreV1().Services("default").Create(ctx, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.ServiceSpec{IPFamilyPolicy: &both, Ports: []corev1.ServicePort{
			{Name: "echo", Protocol: protocol, Port: 80, TargetPort: intstr.FromInt32(7000)},
		}},
	}, metav1.CreateOptions{})
	errtest.Must(t, err)
	for _, six := range []bool{false, true} {
		putSlice(ctx, t, l, name, protocol, six, pods)
	}
	return s
}

// putSlice makes the EndpointSlice of a service for a family, as the endpoint controller would.
func putSlice(ctx context.Context, t *testing.T, l *lab.Lab, name string, protocol corev1.Protocol,
	six bool, pods []*lab.Pod) {
	t.Helper()
	port, portName, kind := int32(7000), "echo", discoveryv1.AddressTypeIPv4
	if six {
		kind = discoveryv1.AddressTypeIPv6
	}
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%s-%s", name,
			strings.ToLower(string(kind))),
			Labels: map[string]string{discoveryv1.LabelServiceName: name}},
		AddressType: kind, Ports: []discoveryv1.EndpointPort{{Name: &portName, Protocol: &protocol,
			Port: &port}},
	}
	for _, p := range pods {
		if a := p.Addr(six); a.IsValid() {
			ready, node := true, p.Node.Name
			slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{
				Addresses: []string{a.String()}, NodeName: &node,
				Conditions: discoveryv1.EndpointConditions{Ready: &ready},
			})
		}
	}
	if _, err := l.Control.Client.DiscoveryV1().EndpointSlices("default").Create(ctx, slice,
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// The table outlives veild, and so do connections from a pod and from outside. It follows changes
// after veild is back. While the API server is away nothing changes.
func TestServicesOutliveVeild(t *testing.T) {
	ctx, l := serviceLab(t, config.HostRoutingKernel)
	client, pods := namedPods(ctx, t, l, 1, "a", "b")
	web := publish(ctx, t, l, "web", corev1.ServiceSpec{Type: corev1.ServiceTypeNodePort}, pods[1])
	n := l.Nodes()[0]

	// The backend is on the other node.
	var ways []*keeper
	for _, six := range []bool{false, true} {
		ways = append(ways,
			&keeper{what: "a pod, " + family(six), from: client,
				q: traffic.Question{To: clusterIP(t, web, six)}},
			&keeper{what: "outside, " + family(six), from: l.Outside,
				q: traffic.Question{To: nodePort(t, web, n, "tcp", six), Egress: true}})
	}

	for _, w := range ways {
		answers(ctx, t, w.from, w.q, everyone("b"))
		var err error
		if w.proc, err = traffic.Keep(ctx, w.from, w.q); err != nil {
			t.Fatalf("%s: %v", w.what, err)
		}
	}

	once := func(when string) {
		t.Helper()
		for _, w := range ways {
			q := w.q
			q.Count, q.Timeout = 1, 2*time.Second
			c, err := traffic.TakeCensus(ctx, w.from, q)
			if err == nil {
				err = everyone("b")(c)
			}
			if err != nil {
				t.Errorf("a new connection %s, %s: %v", when, w.what, err)
			}
		}
	}

	nodetest.KillProgram(ctx, t, n, "veild")

	once("while veild is dead")
	errtest.Must(t, l.Control.RefuseNodes(ctx, true))
	nodetest.StartProgram(ctx, t, n, "veild")

	listed := func(wanted bool) {
		t.Helper()
		nodetest.WaitStatus(ctx, t, n, 30*time.Second, func(s telemetry.Status) error {
			if s.Services == nil || s.Services.Listed != wanted {
				return fmt.Errorf("services %+v", s.Services)
			}
			return nil
		})
	}

	listed(false)
	once("after a start without an API server")
	errtest.Must(t, l.Control.RefuseNodes(ctx, false))

	listed(true)
	once("after the lists have come")
	for _, w := range ways {
		w.lived(ctx, t)
	}

	errtest.Must(t, l.Control.Client.CoreV1().Services("default").Delete(ctx, web.Name,
		metav1.DeleteOptions{}))

	for _, w := range ways {
		q := w.q
		q.Count, q.Timeout = 1, 300*time.Millisecond
		answers(ctx, t, w.from, q, unanswered)
	}

	errtest.Must(t, n.Program("veild").Term(ctx))
	errtest.Must(t, errtest.Of(n.Exec(ctx, l.Program("veild"), "cleanup", "--config",
		lab.ConfigFile)))
	if left, err := filepath.Glob(n.Path("/sys/fs/bpf/kubeveil/*")); err != nil || len(left) > 0 {
		t.Errorf("after cleanup there are %v (%v)", left, err)
	}

	noLeaksBetween(t, l)
}

// longestGap bounds the time without an answer on a connection with 50 requests per second while
// other labs run. 0.1 s was measured.
const longestGap = 3 * time.Second

// lived ends a keeper of a connection to server b and checks that it was answered all the time.
func (k *keeper) lived(ctx context.Context, t *testing.T) {
	t.Helper()
	var r traffic.Kept
	if err := k.proc.Result(ctx, &r); err != nil {
		t.Errorf("%s: %v", k.what, err)
		return
	}
	if !slices.Equal(r.Names, []string{"b"}) ||
		r.MaxGapMillis > float64(labhost.Slow(longestGap).Milliseconds()) {
		t.Errorf("one connection of %s had the answers %+v", k.what, r)
	}
	t.Logf("one connection of %s through it all: %+v", k.what, r)
}

// unanswered expects that no server answers.
func unanswered(c traffic.Census) error {
	if len(c.Names) > 0 {
		return fmt.Errorf("answers from %v", c.Names)
	}
	return nil
}
