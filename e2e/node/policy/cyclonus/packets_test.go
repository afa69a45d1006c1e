package cyclonus_test

import (
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	corev1 "k8s.io/api/core/v1"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/policy"
)

const (
	// seed selects the sample. sampled is the number of its cases.
	seed, sampled = 1, 30
	// patience bounds the wait for an expected answer. settle is the wait for an answer that must
	// not arrive. On the links of one kernel, an answer takes less than 1 ms.
	patience, settle = 10 * time.Second, 100 * time.Millisecond
	// repeat is the time after which a datagram without an expected answer is sent again. The
	// kernel may drop datagrams while it looks for a neighbour.
	repeat = time.Second
)

// datagram is the payload of the UDP flows.
var datagram = []byte("hello")

// served are the ports on which pods listen.
var served = []uint16{80, 81}

// sample returns cases that together have all tags.
func sample(d document) (out []testCase) {
	shuffled := slices.Clone(d.Cases)
	rand.New(rand.NewPCG(seed, seed)).Shuffle(len(shuffled), func(i, j int) {
		shuffled[i], shuffled[j] = shuffled[j], shuffled[i]
	})
	covered := map[string]bool{}
	var rest []testCase
	for _, c := range shuffled {
		if !slices.ContainsFunc(c.Tags, func(tag string) bool { return !covered[tag] }) {
			rest = append(rest, c)
			continue
		}
		out = append(out, c)
		for _, tag := range c.Tags {
			covered[tag] = true
		}
	}
	return append(out, rest[:max(0, sampled-len(out))]...)
}

// socketLab is the node of all pods, with a network namespace for each address of a pod. Pods listen on
// the served ports.
type socketLab struct {
	*node
	t    *testing.T
	pods map[netip.Addr]*nettest.NS
	// protos are the protocols that the kernel has sockets of.
	protos []policy.Proto
	// port is the next source port. Each probe has a new port, so that it does not match a
	// connection that the kernel still tracks.
	port uint16
}

func newLab(t *testing.T) *socketLab {
	l := &socketLab{node: newNode(t, "node"), t: t, pods: map[netip.Addr]*nettest.NS{}, port: 20000,
		protos: []policy.Proto{policy.TCP, policy.UDP}}
	for _, name := range []string{"ipv4/ip_forward", "ipv6/conf/all/forwarding"} {
		nettest.Sysctl(t, l.ns, name, "1")
	}
	if fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_SCTP); err == nil {
		unix.Close(fd)
		l.protos = append(l.protos, policy.SCTP)
	} else {
		t.Logf("without SCTP, of which this kernel has no sockets: %v", err)
	}
	return l
}

// ensure makes the pods that have these addresses.
func (l *socketLab) ensure(pods []corev1.Pod) {
	for _, p := range pods {
		addr := netip.MustParseAddr(p.Status.PodIP)
		if l.pods[addr] == nil {
			l.pods[addr] = nettest.NewNS(l.t)
			l.attach(addr, fmt.Sprint("vpod", len(l.pods)))
			l.listen(addr)
		}
	}
}

// attach links a pod with the node, as the CNI plugin does: routes and neighbours are fixed.
func (l *socketLab) attach(addr netip.Addr, link string) {
	const nodeMAC, podMAC = "02:00:00:00:00:01", "02:00:00:00:00:02"
	pod := l.pods[addr]
	nettest.Veth(l.t, nettest.End{NS: l.ns, Name: link}, nettest.End{NS: pod, Name: "eth0"})
	nettest.AddAddr(l.t, pod, "eth0", netip.PrefixFrom(addr, addr.BitLen()))
	gateway := "169.254.1.1"
	if addr.Is6() {
		gateway = "fe80::1"
	}
	l.ip(l.ns, fmt.Sprintf(`link set %[1]s address %[2]s group %[3]d
		route add %[4]s dev %[1]s
		neigh replace %[4]s lladdr %[5]s dev %[1]s`, link, nodeMAC, abi.PodGroup, addr, podMAC))
	l.ip(pod, fmt.Sprintf(`link set eth0 address %s
		neigh replace %[2]s lladdr %[3]s dev eth0
		route add default via %[2]s dev eth0 onlink`, podMAC, gateway, nodeMAC))
}

// ip runs commands of ip(8) in a namespace.
func (l *socketLab) ip(ns *nettest.NS, commands string) {
	l.t.Helper()
	program := nettest.NeedProgram(l.t, "ip")
	ns.Run(l.t, func() error { return nettest.Feed(commands, program, "-batch", "-") })
}

// listen makes a pod accept connections, and answer datagrams, until the test ends.
func (l *socketLab) listen(addr netip.Addr) {
	for _, port := range served {
		l.pods[addr].Run(l.t, func() error {
			at := netip.AddrPortFrom(addr, port)
			tcp, err := net.Listen("tcp", at.String())
			if err != nil {
				return err
			}
			l.t.Cleanup(func() { tcp.Close() })
			go accept(tcp)
			udp, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(at))
			if err != nil {
				return err
			}
			l.t.Cleanup(func() { udp.Close() })
			go echo(udp)
			if !slices.Contains(l.protos, policy.SCTP) {
				return nil
			}

			// The kernel completes associations without accept.
			fd, err := socket(policy.SCTP, at)
			if err != nil {
				return err
			}
			l.t.Cleanup(func() { unix.Close(fd) })
			return unix.Listen(fd, 4096)
		})
	}
}

func accept(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		c.Close()
	}
}

func echo(c *net.UDPConn) {
	var b [16]byte
	for {
		n, from, err := c.ReadFromUDPAddrPort(b[:])
		if err != nil {
			return
		}
		_, _ = c.WriteToUDPAddrPort(b[:n], from)
	}
}

// socket returns a socket that does not block and is bound to an address.
func socket(proto policy.Proto, at netip.AddrPort) (fd int, err error) {
	kind := unix.SOCK_STREAM
	if proto == policy.UDP {
		kind = unix.SOCK_DGRAM
	}
	domain := unix.AF_INET
	if at.Addr().Is6() {
		domain = unix.AF_INET6
	}
	fd, err = unix.Socket(domain, kind|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, int(proto))
	if err != nil {
		return 0, fmt.Errorf("%s socket: %w", proto, err)
	}
	if err := unix.Bind(fd, sockaddr(at)); err != nil {
		unix.Close(fd)
		return 0, fmt.Errorf("bind %s socket to %s: %w", proto, at, err)
	}
	return fd, nil
}

func sockaddr(at netip.AddrPort) unix.Sockaddr {
	if at.Addr().Is4() {
		return &unix.SockaddrInet4{Port: int(at.Port()), Addr: at.Addr().As4()}
	}
	return &unix.SockaddrInet6{Port: int(at.Port()), Addr: at.Addr().As16()}
}

// probe opens all flows concurrently, and returns which of them were answered.
func (l *socketLab) probe(all []question) (answered []bool) {
	l.t.Helper()
	answered = make([]bool, len(all))
	sockets := make([]unix.PollFd, len(all))
	defer func() {
		for _, s := range sockets {
			unix.Close(int(s.Fd))
		}
	}()
	for i := range sockets {
		sockets[i].Fd = -1
	}
	for i, q := range all {
		l.pods[q.src].Run(l.t, func() error { return l.begin(q, &sockets[i]) })
	}

	deadline := time.Now().Add(patience)
	again := time.Now().Add(repeat)
	var until time.Time
	for {
		if _, err := unix.Poll(sockets, int(settle.Milliseconds()/10)); err != nil && err != unix.EINTR {
			l.t.Fatal(err)
		}
		missing := false
		for i, q := range all {
			answered[i] = answered[i] || sockets[i].Revents == sockets[i].Events
			missing = missing || !answered[i] && !q.denied()
		}
		now := time.Now()
		if missing && now.After(again) {
			again = now.Add(repeat)
			for i, q := range all {
				if q.proto == policy.UDP && !answered[i] && !q.denied() {
					_, _ = unix.Write(int(sockets[i].Fd), datagram)
				}
			}
		}
		if until.IsZero() && (!missing || now.After(deadline)) {
			until = now.Add(settle)
		}
		if !until.IsZero() && now.After(until) {
			return answered
		}
		time.Sleep(settle / 20)
	}
}

// begin connects a socket, and sends a datagram.
func (l *socketLab) begin(q question, s *unix.PollFd) error {
	l.port++
	fd, err := socket(q.proto, netip.AddrPortFrom(q.src, l.port))
	if err != nil {
		return err
	}
	// Connected and no error, or an answer.
	*s = unix.PollFd{Fd: int32(fd), Events: unix.POLLOUT}
	if err := unix.Connect(fd, sockaddr(netip.AddrPortFrom(q.dst, q.port))); err != nil &&
		err != unix.EINPROGRESS {
		return fmt.Errorf("connect %s: %w", q, err)
	}
	if q.proto == policy.UDP {
		s.Events = unix.POLLIN
		if _, err := unix.Write(fd, datagram); err != nil {
			return fmt.Errorf("send %s: %w", q, err)
		}
	}
	return nil
}

// TestPacketsPassAsCyclonusSays sends packets of a sample of the cases, by sockets of pods.
func TestPacketsPassAsCyclonusSays(t *testing.T) {
	nettest.NeedRoot(t)
	program := program(t)
	for _, family := range families {
		d := cases(t, program, family.flags...)
		t.Run(family.name, func(t *testing.T) { sendSample(t, d) })
	}
}

func sendSample(t *testing.T, d document) {
	s, l := newServer(t), newLab(t)
	differ := map[string]int{}
	chosen := sample(d)
	var flows, passed int
	for _, c := range chosen {
		for i, st := range c.Steps {
			l.ensure(st.Pods)
			some := l.sendable(d.answers(st, differ))
			wrong, answered := l.send(s.read(t, c, st, layouts["one node"]), some)
			report(t, fmt.Sprintf("%s, step %d", c, i+1), wrong)
			flows, passed = flows+len(some), passed+answered
		}
	}
	t.Logf("%d cases, %d flows of %v, %d answered", len(chosen), flows, l.protos, passed)
}

// sendable returns the flows that the pods of the lab can have. A pod's packets to itself never
// leave it.
func (l *socketLab) sendable(all []question) []question {
	return slices.DeleteFunc(all, func(q question) bool {
		return q.src == q.dst || !slices.Contains(served, q.port) ||
			!slices.Contains(l.protos, q.proto)
	})
}

// send brings the node to a state and begins all flows. It returns the flows for which cyclonus'
// verdict differs, and the number of answers.
func (l *socketLab) send(state objects, all []question) (wrong []string, answered int) {
	l.t.Helper()
	errtest.Must(l.t, errtest.Of(l.update(state)))
	for i, passed := range l.probe(all) {
		if passed {
			answered++
		}
		if passed == all[i].denied() {
			wrong = append(wrong, fmt.Sprintf("%s: answered %t, cyclonus says denied %t", all[i],
				passed, all[i].denied()))
		}
	}
	return wrong, answered
}

// This is the control that the comparison can fail: it finds each packet that a wrong plan passes
// or drops.
func TestPacketsOfAWrongPlanAreFound(t *testing.T) {
	nettest.NeedRoot(t)
	d := cases(t, program(t))
	s, l := newServer(t), newLab(t)
	c, st := withAllLetters(t, d)
	l.ensure(st.Pods)
	right := s.read(t, c, st, layouts["one node"])
	some := l.sendable(d.answers(st, map[string]int{}))
	denied := 0
	for _, q := range some {
		if q.denied() {
			denied++
		}
	}
	if denied == 0 || denied == len(some) {
		t.Fatalf("%s: cyclonus denies %d of %d flows, want some", c, denied, len(some))
	}

	open, closed := right, right
	open.policies = map[policy.Name]policy.Policy{}
	closed.policies = map[policy.Name]policy.Policy{}
	for namespace := range right.namespaces {
		name := policy.Name{Namespace: namespace, Name: "wrong"}
		closed.policies[name] = policy.Policy{Name: name, Isolates: [2]bool{true, true}}
	}
	for _, plan := range []struct {
		what  string
		state objects
		wrong int
	}{
		{"right", right, 0}, {"without policies", open, denied}, {"right again", right, 0},
		{"denies all", closed, len(some) - denied},
	} {
		if wrong, _ := l.send(plan.state, some); len(wrong) != plan.wrong {
			t.Errorf("%s: of %d flows %d differ, want %d: %q", plan.what, len(some), len(wrong),
				plan.wrong, wrong[:min(len(wrong), 3)])
		}
	}
}
