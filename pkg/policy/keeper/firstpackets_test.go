package keeper

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/netns"
	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/pod"
	"github.com/kubeveil/kubeveil/pkg/pod/podtest"
	"github.com/kubeveil/kubeveil/pkg/policy"
)

// TestFirstPackets attaches many pods that send a forbidden packet as soon as their link takes one,
// while policies change. No forbidden packet is received, but all allowed packets are. The control
// has no policies and receives all packets.
func TestFirstPackets(t *testing.T) {
	nettest.NeedBPF(t)
	pods := 60
	if nettest.Long() {
		pods = 1000
	} else if testing.Short() { // emulated machines
		pods = 20
	}

	t.Run("policies", func(t *testing.T) {
		w := newFirstWorld(t, true)
		for i := range pods {
			w.visit(i)
		}
		w.drain()
		if n := w.received(portForbidden); n > 0 {
			t.Errorf("%d forbidden packets were received: %v", n, w.of(portForbidden))
		}
		if n, want := w.received(portAllowed), 2*pods; n != want {
			t.Errorf("allowed packets of %d pods and families were received, want %d", n, want)
		}
		if w.early == 0 || w.churned.Load() < int64(pods) {
			t.Errorf("%d packets were sent before ADD returned, and policies changed %d times, want "+
				"at least 1 and %d", w.early, w.churned.Load(), pods)
		}
		t.Logf("%d packets were sent before ADD returned; policies changed %d times", w.early,
			w.churned.Load())
	})

	t.Run("control", func(t *testing.T) {
		w := newFirstWorld(t, false)
		count := pods / 5
		for i := range count {
			w.visit(i)
		}
		w.drain()
		for _, port := range []int{portForbidden, portAllowed} {
			if n, want := w.received(port), 2*count; n != want {
				t.Errorf("port %d: packets of %d pods and families were received, want %d", port, n,
					want)
			}
		}
	})
}

const portForbidden, portAllowed = 7000, 7001

// Pods that exist all the time, by the numbers of their addresses. Policies judge packets to the
// server and packets from visitors. No policy selects guests and the pod open.
const serverAt, openAt, firstVisitorAt, visitorAddrs = 2, 3, 10, 200

// arrival is a packet that was received.
type arrival struct {
	port, pod int
	six       bool
}

// firstWorld is a node with two receivers, on which a Keeper runs unless it is the control.
type firstWorld struct {
	t     *testing.T
	node  *nettest.NS
	paths pod.Paths
	k     *Keeper
	// sockets are the sockets of the receivers, by port.
	sockets map[int][]int
	got     map[arrival]int
	// early counts packets that were sent before ADD returned, churned the changes of policies.
	early   int
	churned atomic.Int64
	// adds receives a value when an ADD begins.
	adds chan struct{}
}

func newFirstWorld(t *testing.T, policies bool) *firstWorld {
	t.Helper()
	dir := t.TempDir()
	w := &firstWorld{t: t, node: nettest.NewNS(t), sockets: map[int][]int{}, got: map[arrival]int{},
		adds: make(chan struct{}, 1),
		paths: pod.Paths{PodDir: filepath.Join(dir, "pods"), ReadyFile: filepath.Join(dir, "ready"),
			PolicyDir: filepath.Join(dir, "policy")}}
	nettest.Sysctl(t, w.node, "ipv4/ip_forward", "1")
	nettest.Sysctl(t, w.node, "ipv6/conf/all/forwarding", "1")
	w.node.Run(t, podtest.Guard)
	w.node.Run(t, func() error { return podtest.Mark(w.paths.ReadyFile) })
	if policies {
		w.keep()
	}
	for at, name := range map[int]string{serverAt: "server", openAt: "open"} {
		ns := nettest.NewNS(t)
		w.bind(name, name)
		w.add(name, at, ns.Fd())
		ns.Run(t, w.listen)
	}
	if policies {
		nettest.Until(t, 10*time.Second, "both receivers are judged", func() bool {
			return w.k.Status().Members == 2
		})
	}
	return w
}

// keep runs a Keeper on the node, and changes policies, until the test ends.
func (w *firstWorld) keep() {
	programmed := make(chan struct{}, 1)
	w.k = New(PolicyConfig{Node: "here", Paths: w.paths, Log: slog.New(slog.DiscardHandler),
		Programmed: func(time.Duration) {
			select {
			case programmed <- struct{}{}:
			default:
			}
		}})
	w.node.Run(w.t, w.k.Begin)
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- w.node.Do(func() error { return w.k.Run(ctx) }) }()
	w.t.Cleanup(func() {
		stop()
		errtest.Check(w.t, errors.Join(<-ended, w.k.Close()))
	})

	w.k.PutNamespace(policy.Namespace{Name: "shop"})
	w.changePolicies(0)
	w.k.SetPrefixes(prefixes)
	w.k.Listed()

	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		for n := 1; ; n++ {
			wait := programmed
			if n%changesAnADD == 0 {
				wait = w.adds
			}
			select {
			case <-ctx.Done():
				return
			case <-wait:
				w.changePolicies(n)
				w.churned.Add(1)
			}
		}
	}()
	w.t.Cleanup(func() { stop(); <-stopped })
}

// changesAnADD is the number of policy changes from the beginning of an ADD on. Each begins as soon
// as the change before is in force.
const changesAnADD = 2

// changePolicies puts version n of the policies of visitors and of the server. All versions allow
// the allowed port, and none allows the forbidden port. Half of the versions have one more policy
// for each, which allows nothing.
func (w *firstWorld) changePolicies(n int) {
	for i, app := range []string{"visitor", "server"} {
		p := policy.Policy{Name: policy.Name{Namespace: "shop", Name: app},
			Subjects: policy.Selector{{Key: "app", Values: []string{app}}}}
		direction := []policy.Direction{policy.Egress, policy.Ingress}[i]
		p.Isolates[direction] = true
		more := p
		p.Rules[direction] = []policy.Rule{
			{Ports: []policy.Port{{Proto: policy.UDP, First: portAllowed, Last: portAllowed}}},
			{Peers: []policy.Peer{{Pods: &policy.Selector{{Key: "round",
				Values: []string{fmt.Sprint(n)}}}}}},
		}
		w.k.PutPolicy(p)
		more.Name.Name += "-more"
		if n%2 == 0 {
			w.k.PutPolicy(more)
		} else {
			w.k.DeletePolicy(more.Name)
		}
	}
}

// bind puts a pod into the Keeper, as the source does once the pod is bound to the node.
func (w *firstWorld) bind(name, app string) {
	if w.k != nil {
		w.k.PutPod(policy.Pod{Name: policy.Name{Namespace: "shop", Name: name}, UID: "uid-" + name,
			Node: "here", Labels: map[string]string{"app": app}})
	}
}

// reserved reports whether the Keeper has reserved a pod's group.
func (w *firstWorld) reserved(name string) bool {
	files, _ := filepath.Glob(filepath.Join(w.paths.PolicyDir, "*"))
	for _, f := range files {
		if b, err := os.ReadFile(f); err == nil && strings.Contains(string(b), `"uid-`+name+`"`) {
			return true
		}
	}
	return false
}

// add attaches a pod and returns the name of its link.
func (w *firstWorld) add(name string, at, ns int) string {
	w.t.Helper()
	r := pod.Record{Network: abi.NetworkName, ContainerID: name, IfName: "eth0",
		Netns:    fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), ns),
		HostLink: pod.HostLink(name, "eth0"), Addrs: addrsOf(at), MTU: 1420,
		Workload: pod.Workload{Namespace: "shop", Name: name, UID: "uid-" + name}}
	w.node.Run(w.t, func() error {
		var undo pod.Undo
		return w.paths.Attach(r, ns, &undo)
	})
	if w.k != nil {
		w.k.AttachmentsChanged()
	}
	return r.HostLink
}

// remove detaches a deleted pod. A DEL may fail because groups change every few milliseconds. Then
// remove repeats it, as a kubelet does.
func (w *firstWorld) remove(name, link string) {
	w.t.Helper()
	nettest.Until(w.t, 20*time.Second, "DEL of "+name, func() bool {
		err := w.node.Do(func() error { return w.paths.Detach(link) })
		if err != nil {
			w.t.Log(err)
		}
		return err == nil
	})
	if w.k != nil {
		w.k.AttachmentsChanged()
		w.k.DeletePod(policy.Name{Namespace: "shop", Name: name})
	}
}

// listen opens the sockets of a receiver, in the calling thread's namespace.
func (w *firstWorld) listen() error {
	for _, port := range []int{portForbidden, portAllowed} {
		for _, six := range []bool{false, true} {
			fd, err := udpSocket(six)
			if err != nil {
				return err
			}
			w.t.Cleanup(func() { unix.Close(fd) })
			if err := unix.Bind(fd, sockaddr(netip.Addr{}, six, port)); err != nil {
				return fmt.Errorf("listen on port %d: %w", port, err)
			}
			w.sockets[port] = append(w.sockets[port], fd)
		}
	}
	return nil
}

// udpSocket returns a nonblocking socket. An IPv6 socket does not accept IPv4.
func udpSocket(six bool) (fd int, err error) {
	family := unix.AF_INET
	if six {
		family = unix.AF_INET6
	}
	fd, err = unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err == nil && six {
		err = unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 1)
	}
	return fd, err
}

// sockaddr returns an address of a family. The zero address means the wildcard address.
func sockaddr(a netip.Addr, six bool, port int) unix.Sockaddr {
	if six {
		to := &unix.SockaddrInet6{Port: port}
		if a.IsValid() {
			to.Addr = a.As16()
		}
		return to
	}
	to := &unix.SockaddrInet4{Port: port}
	if a.IsValid() {
		to.Addr = a.As4()
	}
	return to
}

// drain records all received packets.
func (w *firstWorld) drain() {
	b := make([]byte, 64)
	for port, fds := range w.sockets {
		for i, fd := range fds {
			for {
				n, _, err := unix.Recvfrom(fd, b, 0)
				if err != nil || n != 4 {
					break
				}
				w.got[arrival{port, int(binary.BigEndian.Uint32(b)), i%2 == 1}]++
			}
		}
	}
}

// of returns the arrivals at a port.
func (w *firstWorld) of(port int) (out []arrival) {
	for a := range w.got {
		if a.port == port {
			out = append(out, a)
		}
	}
	return out
}

// received counts the pairs of pod and family that a packet came from at a port.
func (w *firstWorld) received(port int) int { return len(w.of(port)) }

// visit attaches pod i and removes it. The pod sends packets from before its link exists until an
// allowed packet of each family was received. Half of the pods are attached without waiting for a
// reservation.
func (w *firstWorld) visit(i int) {
	w.t.Helper()
	f, err := netns.New()
	errtest.Must(w.t, err)
	defer f.Close()
	app, to := "visitor", openAt
	if i%2 == 1 {
		app, to = "guest", serverAt
	}
	s := &sender{pod: i, to: addrsOf(to)}
	errtest.Must(w.t, netns.DoFd(int(f.Fd()), "of a pod", s.open))
	defer s.close()

	name := fmt.Sprintf("%s-%d", app, i)
	w.bind(name, app)
	if w.k != nil && i%4 < 2 {
		nettest.Until(w.t, 10*time.Second, "a reservation", func() bool { return w.reserved(name) })
	}
	select {
	case w.adds <- struct{}{}:
	default: // The changes for the last ADD are still in progress.
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		s.insist()
	}()
	defer func() { s.stop.Store(true); <-ended }()
	link := w.add(name, firstVisitorAt+i%visitorAddrs, int(f.Fd()))
	s.attached.Store(true)
	nettest.Until(w.t, 20*time.Second, "forbidden packets of "+name+" are sent", func() bool {
		select {
		case <-ended:
			return true
		default:
			return false
		}
	})
	w.early += s.early

	nettest.Until(w.t, 20*time.Second, "allowed packets of "+name, func() bool {
		w.drain()
		for six := range 2 {
			if w.got[arrival{portAllowed, i, six == 1}] == 0 {
				s.send(six, portAllowed)
			}
		}
		return w.got[arrival{portAllowed, i, false}]*w.got[arrival{portAllowed, i, true}] > 0
	})
	w.remove(name, link)
}

// sender sends as a pod. It never waits.
type sender struct {
	pod      int
	to       []netip.Addr
	fds      [2]int // IPv4, IPv6
	attached atomic.Bool
	stop     atomic.Bool
	early    int
}

// open opens the sockets in the calling thread's namespace, which they keep.
func (s *sender) open() error {
	s.fds = [2]int{-1, -1}
	for i := range s.fds {
		fd, err := udpSocket(i == 1)
		if err != nil {
			return err
		}
		s.fds[i] = fd
	}
	return nil
}

func (s *sender) close() {
	for _, fd := range s.fds {
		unix.Close(fd)
	}
}

// send sends a packet and reports whether the pod's network took it.
func (s *sender) send(family, port int) bool {
	b := binary.BigEndian.AppendUint32(nil, uint32(s.pod))
	return unix.Sendto(s.fds[family], b, 0, sockaddr(s.to[family], family == 1, port)) == nil
}

// insistences is the number of forbidden packets per family that a pod sends after it was attached.
const insistences = 3

// insist sends forbidden packets without a pause, from before the pod has a link until it was
// attached and a few more were sent.
func (s *sender) insist() {
	for late := [2]int{}; min(late[0], late[1]) < insistences && !s.stop.Load(); {
		attached := s.attached.Load()
		for family := range s.fds {
			switch sent := s.send(family, portForbidden); {
			case sent && attached:
				late[family]++
			case sent:
				s.early++
			}
		}
		// ADD and the Keeper need a CPU too.
		_, _, _ = unix.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0)
	}
}
