package bpf

import (
	"fmt"
	"net/netip"
	"os"
	"testing"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/service"
)

// TestServicesChangeWhileTheyAreRead exchanges the backends of two services continuously. A
// connection to one service must never go to a backend of the other. Without the second look-up of
// backend_choose that happens about once in a million choices on two processors.
func TestServicesChangeWhileTheyAreRead(t *testing.T) {
	own := map[string][]netip.Addr{
		"198.18.0.1": nettest.Addrs("198.18.1.1", "fd42:1::1"),
		"198.18.0.2": nettest.Addrs("198.18.1.2", "fd42:1::2"),
	}
	if os.Getenv(serviceChildEnv) != "" {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		errtest.Must(t, err)
		defer unix.Close(fd)
		for range 30_000 {
			for addr, backends := range own {
				if got := chosenBy(t, fd, addr); got != backends[0] {
					t.Fatalf("%s went to %v", addr, got)
				}
			}
		}
		return
	}

	coll, dir := attached(t)
	p := newPlanner(t)
	change := func(round int) {
		for addr, backends := range own {
			name := service.Name{Namespace: "test", Name: addr}
			p.PutService(service.Service{Name: name, ClusterIPs: nettest.Addrs(addr),
				Ports: []service.Port{{Name: "web", Protocol: service.UDP, Port: 80}}})
			p.PutSlice(service.Slice{
				Service: name, Name: "1", Ports: []service.SlicePort{{Name: "web",
					Protocol: service.UDP, Port: 8080 + uint16(round%2)}},
				Endpoints: []service.Endpoint{{Addr: backends[0], Ready: true, Serving: true}},
			})
		}
		c := p.Plan()
		batch(t, coll.Maps["service_slots"], c.Backends.Keys, c.Backends.Values)
		batch(t, coll.Maps["service_fronts"], c.Frontends.Keys, c.Frontends.Values)
	}

	change(0)
	run, done := again(t, dir), make(chan error)
	go func() {
		out, err := run()
		if err != nil {
			err = fmt.Errorf("%w\n%s", err, out)
		}
		done <- err
	}()

	for round := 1; ; round++ {
		select {
		case err := <-done:
			if err != nil {
				t.Errorf("in the cgroup: %v", err)
			}
			t.Logf("%d changes, %d choices, %d given up", round, counted(t, coll, socketUDP),
				counted(t, coll, socketUnsteady))
			if given := counted(t, coll, socketUnsteady); given > 0 {
				t.Errorf("%d readers gave up", given)
			}
			return
		default:
			change(round)
		}
	}
}

// chosenBy connects a datagram socket and returns the chosen backend. A packet to one of this
// host's own addresses has that address as its source too.
func chosenBy(t *testing.T, fd int, addr string) netip.Addr {
	t.Helper()
	var unspecified [16]byte // AF_UNSPEC undoes the connection
	if _, _, errno := unix.Syscall(unix.SYS_CONNECT, uintptr(fd),
		uintptr(unsafe.Pointer(&unspecified)), unsafe.Sizeof(unspecified)); errno != 0 {
		t.Fatal(errno)
	}
	if err := unix.Connect(fd, &unix.SockaddrInet4{Port: 80,
		Addr: netip.MustParseAddr(addr).As4()}); err != nil {
		t.Fatal(err)
	}
	name, err := unix.Getsockname(fd)
	errtest.Must(t, err)
	return netip.AddrFrom4(name.(*unix.SockaddrInet4).Addr)
}

// backendGoes has the map of members as its descriptor 3.
func backendGoes(t *testing.T, plain, sticky string) {
	fd, err := unix.FcntlInt(3, unix.F_DUPFD_CLOEXEC, 0)
	errtest.Must(t, err)

	members, err := ebpf.NewMapFromFD(fd)
	errtest.Must(t, err)
	defer members.Close()
	kept := answersTCP(t, sticky, 1)[0]
	setMember(t, members, kept, service.Draining)
	// The backend is still in the array, so the first choices may be the old one. But it is not
	// kept.
	answersTCP(t, sticky, 40)
	if got := answersTCP(t, sticky, 20); len(got) != 1 || got[0] == kept {
		t.Errorf("affinity to %s, which drains, became one to %v", kept, got)
	}

	setMember(t, members, kept, service.Eligible)
	c, to := socket(t), netip.AddrPortFrom(netip.MustParseAddr(plain), 53)
	flow := ask(t, c, to)
	setMember(t, members, flow, service.Draining)

	for range 20 {
		if got := ask(t, c, to); got != flow {
			t.Fatalf("datagrams went from %s, which drains, to %s", flow, got)
		}
	}

	setMember(t, members, flow, 0)
	moved := false
	for range 40 {
		moved = moved || ask(t, c, to) != flow
	}

	if !moved {
		t.Errorf("datagrams stay with %s, which is gone", flow)
	}
}

// setMember sets the state of a backend in all its groups; 0 removes it from them.
func setMember(t *testing.T, members *ebpf.Map, addr string, to service.Member) {
	t.Helper()
	var key service.MemberKey
	var had service.Member
	var all []service.MemberKey
	for it := members.Iterate(); it.Next(&key, &had); {
		if key.Addr == netip.MustParseAddr(addr).As16() {
			all = append(all, key)
		}
	}
	if len(all) == 0 {
		t.Fatalf("%s is no member", addr)
	}
	for _, key := range all {
		var err error
		if to == 0 {
			err = members.Delete(key)
		} else {
			err = members.Put(key, to)
		}
		errtest.Must(t, err)
	}
}

func newPlanner(t testing.TB) *service.Planner {
	t.Helper()
	p, err := service.New("node-1", service.Limits{Frontends: 256, BackendSlots: 4096,
		Members:      1024,
		SourceRanges: 256})
	errtest.Must(t, err)
	return p
}

// BenchmarkServiceWrites measures one entry of a batch that is written to the kernel's maps.
func BenchmarkServiceWrites(b *testing.B) {
	nettest.NeedBPF(b)
	const n = 100_000
	spec, err := LoadServiceSocket()
	errtest.Must(b, err)
	slotKeys, slots := make([]uint32, n), make([]service.Backend, n)
	frontKeys, fronts := make([]service.FrontendKey, n), make([]service.Frontend, n)
	for i := range n {
		slotKeys[i] = uint32(i)
		slots[i].Addr[15] = byte(i)
		frontKeys[i].Addr = netip.AddrFrom4([4]byte{198, 18 + byte(i>>16), byte(i >> 8),
			byte(i)}).As16()
		fronts[i].First = uint32(i)
	}
	b.Run("slots", func(b *testing.B) { writes(b, spec.Maps["service_slots"], slotKeys, slots) })
	b.Run("fronts", func(b *testing.B) {
		writes(b, spec.Maps["service_fronts"], frontKeys, fronts)
	})
}

func writes[K, V any](b *testing.B, spec *ebpf.MapSpec, keys []K, values []V) {
	spec = spec.Copy()
	spec.MaxEntries = uint32(2 * len(keys))
	m, err := ebpf.NewMap(spec)
	errtest.Must(b, err)
	defer m.Close()
	for b.Loop() {
		if _, err := m.BatchUpdate(keys, values, nil); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*len(keys)), "ns/entry")
}
