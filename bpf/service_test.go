package bpf

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/cilium/ebpf/ringbuf"
	"github.com/cilium/ebpf/rlimit"
	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/service"
	"github.com/kubeveil/kubeveil/pkg/service/slots"
)

// serviceChildEnv is set in the process that runs in the cgroup.
const serviceChildEnv = "KUBEVEIL_SERVICE_CHILD"

var serviceHooks = map[string]ebpf.AttachType{
	"service_connect4":     ebpf.AttachCGroupInet4Connect,
	"service_connect6":     ebpf.AttachCGroupInet6Connect,
	"service_sendmsg4":     ebpf.AttachCGroupUDP4Sendmsg,
	"service_sendmsg6":     ebpf.AttachCGroupUDP6Sendmsg,
	"service_recvmsg4":     ebpf.AttachCGroupUDP4Recvmsg,
	"service_recvmsg6":     ebpf.AttachCGroupUDP6Recvmsg,
	"service_getpeername4": ebpf.AttachCgroupInet4GetPeername,
	"service_getpeername6": ebpf.AttachCgroupInet6GetPeername,
}

func loadService(t *testing.T) *ebpf.Collection {
	t.Helper()
	nettest.NeedBPF(t)
	errtest.Must(t, rlimit.RemoveMemlock())
	spec, err := LoadServiceSocket()
	errtest.Must(t, err)
	coll, err := ebpf.NewCollection(spec)
	if err != nil {
		t.Fatalf("load: %+v", err)
	}
	t.Cleanup(coll.Close)
	return coll
}

func TestServiceLayoutMatchesGo(t *testing.T) {
	spec, err := LoadServiceSocket()
	errtest.Must(t, err)
	for name, want := range map[string][2]uintptr{
		"service_fronts": {unsafe.Sizeof(service.FrontendKey{}),
			unsafe.Sizeof(service.Frontend{})},
		"service_slots": {4, unsafe.Sizeof(service.Backend{})}, // of a chunk
	} {
		m := spec.Maps[name]
		if m.InnerMap != nil {
			m = m.InnerMap
		}
		if got := [2]uintptr{uintptr(m.KeySize), uintptr(m.ValueSize)}; got != want {
			t.Errorf("%s has keys and values of %d bytes, Go has %d", name, got, want)
		}
	}
}

// attached returns the programs, attached to a new cgroup.
func attached(t *testing.T) (*ebpf.Collection, string) {
	t.Helper()
	coll := loadService(t)
	dir := nettest.NewCgroup(t)
	for name, hook := range serviceHooks {
		l, err := link.AttachCgroup(link.CgroupOptions{Path: dir, Attach: hook,
			Program: coll.Programs[name]})
		if err != nil {
			t.Fatalf("attach %s: %v", name, err)
		}
		t.Cleanup(func() { l.Close() })
	}
	return coll, dir
}

// again returns a function that runs this test again, as a process of a cgroup and of a network
// namespace. In that namespace the backends have their addresses, and no host has the services'
// addresses. files become its descriptors from 3 on.
func again(t *testing.T, dir string, files ...*os.File) func() (string, error) {
	t.Helper()
	ns := nettest.NewNS(t)
	nettest.AddAddr(t, ns, "lo", nettest.Prefixes("198.18.1.1/32", "198.18.1.2/32", "fd42:1::1/128",
		"fd42:1::2/128")...)
	group, err := os.Open(dir)
	errtest.Must(t, err)
	t.Cleanup(func() { group.Close() })
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v",
		"-test.timeout=5m")
	cmd.Env = append(os.Environ(), serviceChildEnv+"=1")
	cmd.ExtraFiles = files
	cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(group.Fd()),
		Pdeathsig: syscall.SIGKILL}
	return func() (string, error) {
		var out []byte
		err := ns.Do(func() (err error) { out, err = cmd.CombinedOutput(); return err })
		return string(out), err
	}
}

// The first values of enum service_count in lib/service/count.h.
const (
	socketTCP uint32 = iota
	socketUDP
	socketRefused
	socketUnsteady
	packetTCP
	packetUDP
	packetRefused
	packetLocal
	packetSource
	packetUnsteady
	packetAddress
	packetPort
	packetMoved
	packetHostPort
	packetFragment
)

// counted returns the value of one of these counters.
func counted(t *testing.T, coll *ebpf.Collection, what uint32) uint64 {
	t.Helper()
	var counts []uint64
	errtest.Must(t, coll.Maps["service_counts"].Lookup(what, &counts))
	sum := uint64(0)
	for _, n := range counts {
		sum += n
	}
	return sum
}

func TestServiceSockets(t *testing.T) {
	if os.Getenv(serviceChildEnv) != "" {
		serviceChild(t)
		return
	}
	coll, dir := attached(t)
	writeServices(t, coll)
	var files []*os.File
	for _, name := range []string{"service_fronts", "service_slots"} {
		fd, err := unix.FcntlInt(uintptr(coll.Maps[name].FD()), unix.F_DUPFD_CLOEXEC, 0)
		errtest.Must(t, err)
		files = append(files, os.NewFile(uintptr(fd), name))
		defer files[len(files)-1].Close()
	}
	if out, err := again(t, dir, files...)(); err != nil {
		t.Fatalf("in the cgroup: %v\n%s", err, out)
	}
	if found, refused := counted(t, coll, socketTCP)+counted(t, coll, socketUDP),
		counted(t, coll, socketRefused); found < 160 || refused < 4 {
		t.Errorf("%d choices and %d refusals were counted", found, refused)
	}
	expectRefusedSockets(t, coll)
}

// expectRefusedSockets expects a sample of each refusal, with the service and one network
// namespace.
func expectRefusedSockets(t *testing.T, coll *ebpf.Collection) {
	t.Helper()
	r, err := ringbuf.NewReader(coll.Maps["drop_samples"])
	errtest.Must(t, err)
	defer r.Close()
	native, namespaces := binary.NativeEndian, map[uint64]bool{}
	var got []string
	for r.AvailableBytes() > 0 {
		record, err := r.Read()
		errtest.Must(t, err)
		b := record.RawSample
		if reason := native.Uint32(b[8:]); reason != SampledService+socketRefused {
			t.Errorf("a sample for %d", reason)
		}
		namespaces[native.Uint64(b[24:])] = true
		to := netip.AddrFrom16([16]byte(b[32:])).Unmap()
		got = append(got, fmt.Sprint(b[50], " ",
			netip.AddrPortFrom(to, binary.BigEndian.Uint16(b[48:]))))
	}
	slices.Sort(got)
	if want := []string{"17 198.18.0.3:53", "17 [fd42::3]:53", "6 198.18.0.3:80",
		"6 [fd42::3]:80"}; !slices.Equal(got, want) || len(namespaces) != 1 || namespaces[0] {
		t.Errorf("samples %v of namespaces %v, want %v of one", got, namespaces, want)
	}
}

// TestServiceSocketsWithoutPrograms is the negative control: without the programs no socket reaches
// a service.
func TestServiceSocketsWithoutPrograms(t *testing.T) {
	if os.Getenv(serviceChildEnv) != "" {
		serviceChild(t)
		return
	}
	nettest.NeedBPF(t)
	out, err := again(t, nettest.NewCgroup(t))()
	if err == nil ||
		!strings.Contains(out,
			"--- FAIL: TestServiceSocketsWithoutPrograms/IPv4/choices_are_spread") {
		t.Errorf("services work without programs: %v\n%s", err, out)
	}
}

// writeServices plans the services that serviceChild uses and writes the maps.
func writeServices(t *testing.T, coll *ebpf.Collection) {
	t.Helper()
	p := newPlanner(t)
	both := []service.Port{{Name: "web", Protocol: service.TCP, Port: 80},
		{Name: "dns", Protocol: service.UDP, Port: 53}}
	for name, s := range map[string]service.Service{
		"plain": {ClusterIPs: nettest.Addrs("198.18.0.1", "fd42::1"), Ports: both},
		"sticky": {ClusterIPs: nettest.Addrs("198.18.0.2", "fd42::2"), Ports: both,
			Affinity: time.Hour},
		"empty": {ClusterIPs: nettest.Addrs("198.18.0.3", "fd42::3"), Ports: both},
	} {
		s.Name = service.Name{Namespace: "test", Name: name}
		p.PutService(s)
		if name == "empty" {
			continue
		}
		slice := service.Slice{Service: s.Name, Name: "1",
			Ports: []service.SlicePort{{Name: "web", Protocol: service.TCP, Port: 8080},
				{Name: "dns", Protocol: service.UDP, Port: 5353}}}
		for _, a := range nettest.Addrs("198.18.1.1", "198.18.1.2", "fd42:1::1", "fd42:1::2") {
			slice.Endpoints.Append(
				service.Endpoint{Addr: a, Ready: true, Serving: true})
		}
		p.PutSlice(slice)
	}

	c := p.Plan()
	writeRuns(t, coll, c.Runs)
	batch(t, coll.Maps["service_fronts"], c.Frontends.Keys, c.Frontends.Values)
}

// openSlots opens the slots of a collection for writing.
func openSlots(t testing.TB, coll *ebpf.Collection) *slots.Slots {
	t.Helper()
	spec, err := LoadServiceSocket()
	errtest.Must(t, err)
	s, err := slots.Open(coll.Maps["service_slots"], spec.Maps["service_slots"])
	errtest.Must(t, err)
	t.Cleanup(func() { s.Close() })
	return s
}

// writeRuns writes runs of backends to the slots of a collection.
func writeRuns(t testing.TB, coll *ebpf.Collection, runs []service.Run) {
	t.Helper()
	errtest.Must(t, errtest.Of(openSlots(t, coll).Write(runs, 0)))
}

func batch[K, V any](t testing.TB, m *ebpf.Map, keys []K, values []V) {
	t.Helper()
	if len(keys) == 0 {
		return
	}
	if n, err := m.BatchUpdate(keys, values, nil); err != nil || n != len(keys) {
		t.Fatalf("wrote %d of %d entries: %v", n, len(keys), err)
	}
}

// serviceChild runs in the cgroup. Backends reply with their own address.
func serviceChild(t *testing.T) {
	for _, a := range nettest.Addrs("198.18.1.1", "198.18.1.2", "fd42:1::1", "fd42:1::2") {
		serveTCP(t, netip.AddrPortFrom(a, 8080))
		serveUDP(t, netip.AddrPortFrom(a, 5353))
	}

	for family, v := range map[string]struct{ plain, sticky, empty, none string }{
		"IPv4": {"198.18.0.1", "198.18.0.2", "198.18.0.3", "198.18.0.9"},
		"IPv6": {"fd42::1", "fd42::2", "fd42::3", "fd42::9"},
	} {
		t.Run(family, func(t *testing.T) {
			t.Run("choices are spread", func(t *testing.T) {
				if got := answersTCP(t, v.plain, 40); len(got) != 2 {
					t.Errorf("40 connections went to %v", got)
				}
			})
			t.Run("affinity keeps one", func(t *testing.T) {
				if got := answersTCP(t, v.sticky, 40); len(got) != 1 {
					t.Errorf("40 connections went to %v", got)
				}
			})

			t.Run("none is refused at once", func(t *testing.T) {
				if _, err := net.DialTimeout("tcp", net.JoinHostPort(v.empty, "80"),
					10*time.Second); !errors.Is(err, unix.ECONNREFUSED) {
					t.Errorf("connect: %v", err)
				}
				if err := sendOnly(v.empty); !errors.Is(err, unix.ECONNREFUSED) {
					t.Errorf("send: %v", err)
				}
			})

			t.Run("what is no service is left alone", func(t *testing.T) {
				if _, err := net.DialTimeout("tcp", net.JoinHostPort(v.none, "80"),
					10*time.Second); !errors.Is(err, unix.ENETUNREACH) &&
					!errors.Is(err, unix.EADDRNOTAVAIL) {
					t.Errorf("connect: %v", err)
				}
			})
			t.Run("datagrams stay and are answered by the service",
				func(t *testing.T) { datagrams(t, v.plain) })
			t.Run("a backend without the service",
				func(t *testing.T) { withoutTheService(t, v.plain) })
			t.Run("a backend that goes", func(t *testing.T) { backendGoes(t, v.plain, v.sticky) })
		})
	}
}

func serveTCP(t *testing.T, at netip.AddrPort) {
	l, err := net.Listen("tcp", at.String())
	errtest.Must(t, err)
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			fmt.Fprint(c, at.Addr())
			c.Close()
		}
	}()
}

func serveUDP(t *testing.T, at netip.AddrPort) {
	c, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(at))
	errtest.Must(t, err)
	t.Cleanup(func() { c.Close() })
	go func() {
		buf := make([]byte, 16)
		for {
			_, from, err := c.ReadFromUDPAddrPort(buf)
			if err != nil {
				return
			}
			c.WriteToUDPAddrPort([]byte(at.Addr().String()), from)
		}
	}()
}

// answersTCP returns the backends that replied, and checks that getpeername returned the service.
func answersTCP(t *testing.T, addr string, n int) []string {
	t.Helper()
	who := make(map[string]int)
	for range n {
		c, err := net.DialTimeout("tcp", net.JoinHostPort(addr, "80"), 10*time.Second)
		errtest.Must(t, err)
		if got := c.RemoteAddr().String(); got != net.JoinHostPort(addr, "80") {
			t.Errorf("the peer of %s is %s", addr, got)
		}
		text, err := io.ReadAll(c)
		c.Close()
		errtest.Must(t, err)
		who[string(text)]++
	}
	return slices.Sorted(maps.Keys(who))
}

func sendOnly(addr string) error {
	c, err := net.ListenUDP("udp", nil)
	if err != nil {
		return err
	}
	defer c.Close()
	_, err = c.WriteToUDPAddrPort([]byte("?"), netip.AddrPortFrom(netip.MustParseAddr(addr), 53))
	return err
}

// ask sends one datagram to a service and returns the backend that replied under the service's
// address.
func ask(t *testing.T, c *net.UDPConn, to netip.AddrPort) string {
	t.Helper()
	c.SetDeadline(time.Now().Add(10 * time.Second))
	if _, err := c.WriteToUDPAddrPort([]byte("?"), to); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 64)
	n, from, err := c.ReadFromUDPAddrPort(buf)
	errtest.Must(t, err)
	if netip.AddrPortFrom(from.Addr().Unmap(), from.Port()) != to {
		t.Errorf("%s answers for %s", from, to)
	}
	return string(buf[:n])
}

func socket(t *testing.T) *net.UDPConn {
	t.Helper()
	c, err := net.ListenUDP("udp", nil)
	errtest.Must(t, err)
	t.Cleanup(func() { c.Close() })
	return c
}

func datagrams(t *testing.T, addr string) {
	to := netip.AddrPortFrom(netip.MustParseAddr(addr), 53)
	sockets := make(map[string]bool)
	for range 20 {
		c := socket(t)
		first := ask(t, c, to)
		sockets[first] = true
		for range 5 {
			if got := ask(t, c, to); got != first {
				t.Errorf("one socket was answered by %s and %s", first, got)
			}
		}
	}
	if len(sockets) != 2 {
		t.Errorf("20 sockets were answered by %v", sockets)
	}
}

// withoutTheService sends from a socket to a backend alternately by a service and directly.
func withoutTheService(t *testing.T, addr string) {
	to := netip.AddrPortFrom(netip.MustParseAddr(addr), 53)
	c := socket(t)
	first := ask(t, c, to)

	backend := netip.AddrPortFrom(netip.MustParseAddr(first), 5353)
	for range 3 {
		ask(t, c, backend)
		if got := ask(t, c, to); got != first {
			t.Errorf("datagrams went from %s to %s", first, got)
		}
	}

	connected, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(to))
	errtest.Must(t, err)
	defer connected.Close()
	raw, err := connected.SyscallConn()
	errtest.Must(t, err)

	err = raw.Control(func(fd uintptr) {
		for _, backend := range backends(to.Addr().Is6()) {
			if err := unix.Connect(int(fd), unixAddr(backend)); err != nil {
				t.Errorf("connect to %s: %v", backend, err)
				continue
			}
			if peer, err := unix.Getpeername(int(fd)); err != nil ||
				!reflect.DeepEqual(peer, unixAddr(backend)) {
				t.Errorf("the peer of %s is %v, %v", backend, peer, err)
			}
		}
	})
	if err != nil {
		t.Error(err)
	}
}

// backends returns the backends of a family, at their UDP port.
func backends(six bool) []netip.AddrPort {
	addrs := nettest.Addrs("198.18.1.1", "198.18.1.2")
	if six {
		addrs = nettest.Addrs("fd42:1::1", "fd42:1::2")
	}
	return []netip.AddrPort{netip.AddrPortFrom(addrs[0], 5353), netip.AddrPortFrom(addrs[1], 5353)}
}

func unixAddr(a netip.AddrPort) unix.Sockaddr {
	if a.Addr().Is4() {
		return &unix.SockaddrInet4{Port: int(a.Port()), Addr: a.Addr().As4()}
	}
	return &unix.SockaddrInet6{Port: int(a.Port()), Addr: a.Addr().As16()}
}
