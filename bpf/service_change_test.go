package bpf

import (
	"bytes"
	"cmp"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"testing"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/service"
	"github.com/kubeveil/kubeveil/pkg/service/planner"
	"github.com/kubeveil/kubeveil/pkg/service/slots"
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
	p, all := newPlanner(t), openSlots(t, coll)
	change := func(round int) {
		for addr, backends := range own {
			name := service.Name{Namespace: "test", Name: addr}
			p.PutService(service.Service{Name: name, ClusterIPs: nettest.Addrs(addr),
				Ports: []service.Port{{Name: "web", Protocol: service.UDP, Port: 80}}})
			p.PutSlice(service.Slice{
				Service: name, Name: "1", Ports: []service.SlicePort{{Name: "web",
					Protocol: service.UDP, Port: 8080 + uint16(round%2)}},
				Endpoints: service.EndpointsOf(service.Endpoint{Addr: backends[0], Ready: true,
					Serving: true}),
			})
		}
		c := p.Plan()
		errtest.Must(t, errtest.Of(all.Write(c.Runs, 0)))
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

// backendGoes has the maps of frontends and slots as its descriptors 3 and 4.
func backendGoes(t *testing.T, plain, sticky string) {
	runs := openRuns(t)
	kept := answersTCP(t, sticky, 1)[0]
	runs.move(t, kept, drains)
	if got := answersTCP(t, sticky, 20); len(got) != 1 || got[0] == kept {
		t.Errorf("affinity to %s, which drains, became one to %v", kept, got)
	}

	runs.move(t, kept, eligible)
	c, to := socket(t), netip.AddrPortFrom(netip.MustParseAddr(plain), 53)
	flow := ask(t, c, to)
	runs.move(t, flow, drains)

	for range 20 {
		if got := ask(t, c, to); got != flow {
			t.Fatalf("datagrams went from %s, which drains, to %s", flow, got)
		}
	}

	runs.move(t, flow, gone)
	if ask(t, c, to) == flow {
		t.Errorf("datagrams stay with %s, which is gone", flow)
	}
}

// state is what a backend may get.
type state int

const (
	eligible state = iota
	drains
	gone
)

// runs changes the runs of frontends.
type runs struct {
	frontends *ebpf.Map
	slots     *slots.Slots
	next      uint32 // the first slot of the next run
}

func openRuns(t *testing.T) *runs {
	t.Helper()
	var all [2]*ebpf.Map
	for i := range all {
		fd, err := unix.FcntlInt(uintptr(3+i), unix.F_DUPFD_CLOEXEC, 0)
		errtest.Must(t, err)
		all[i], err = ebpf.NewMapFromFD(fd)
		errtest.Must(t, err)
		t.Cleanup(func() { all[i].Close() })
	}
	s, err := slots.Open(all[1], nil)
	errtest.Must(t, err)
	t.Cleanup(func() { s.Close() })
	return &runs{all[0], s, 1 << 15}
}

// move changes the state of a backend in all runs that have it, by new runs.
func (r *runs) move(t *testing.T, addr string, to state) {
	t.Helper()
	var key service.FrontendKey
	var f service.Frontend
	moved := map[service.FrontendKey]service.Frontend{}
	for it := r.frontends.Iterate(); it.Next(&key, &f); {
		run, err := r.slots.Run(f.First, f.End())
		errtest.Must(t, err)
		var lists [3][]service.Backend
		found := false
		for i, b := range run {
			is := eligible
			if i >= int(f.Count) {
				is = drains
			}
			if b.Addr == netip.MustParseAddr(addr).As16() {
				is, found = to, true
			}
			lists[is] = append(lists[is], b)
		}
		if !found {
			continue
		}

		all := slices.Concat(lists[eligible], lists[drains])
		slices.SortFunc(all[:len(lists[eligible])], compareBackends)
		slices.SortFunc(all[len(lists[eligible]):], compareBackends)
		errtest.Must(t, errtest.Of(r.slots.Write([]service.Run{{First: r.next,
			Backends: service.BackendsOf(all)}}, 0)))
		f.First, f.Count, f.Draining = r.next, uint32(len(lists[eligible])),
			uint32(len(lists[drains]))
		f.Revision += 1 << 32
		r.next += uint32(len(all))
		moved[key] = f
	}
	if len(moved) == 0 {
		t.Fatalf("%s is no backend", addr)
	}
	for key, f := range moved {
		errtest.Must(t, r.frontends.Put(key, f))
	}
}

func compareBackends(a, b service.Backend) int {
	return cmp.Or(bytes.Compare(a.Addr[:], b.Addr[:]), bytes.Compare(a.Port[:], b.Port[:]))
}

func newPlanner(t testing.TB) *planner.Planner {
	t.Helper()
	p, err := planner.New("node-1", service.Limits{Frontends: 256, BackendSlots: 4096,
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
	backends := make([]service.Backend, n)
	frontKeys, fronts := make([]service.FrontendKey, n), make([]service.Frontend, n)
	for i := range n {
		backends[i].Addr[15] = byte(i)
		frontKeys[i].Addr = netip.AddrFrom4([4]byte{198, 18 + byte(i>>16), byte(i >> 8),
			byte(i)}).As16()
		fronts[i].First = uint32(i)
	}

	b.Run("slots", func(b *testing.B) {
		runs := []service.Run{{Backends: service.BackendsOf(backends)}}
		outer, err := slots.Make(spec.Maps["service_slots"])
		errtest.Must(b, err)
		defer outer.Close()
		all, err := slots.Open(outer, spec.Maps["service_slots"])
		errtest.Must(b, err)
		defer all.Close()
		for b.Loop() {
			errtest.Must(b, errtest.Of(all.Write(runs, 0)))
		}
		b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*n), "ns/entry")
	})
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
		errtest.Must(b, errtest.Of(m.BatchUpdate(keys, values, nil)))
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*len(keys)), "ns/entry")
}
