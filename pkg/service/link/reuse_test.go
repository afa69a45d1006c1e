package link

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"testing"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/service/planner"
	"github.com/kubeveil/kubeveil/pkg/service/servicetest"
)

// TestReusedEntriesLeadToNoOtherBackend sends reused datagrams, or longReused in the long run.
const reused, longReused = 1_000_000, 100_000_000

// TestReusedEntriesLeadToNoOtherBackend sends datagrams of many more flows than the flow tables have
// entries, on two processors at once. So the kernel reuses the memory of entries while programs
// read them. Each datagram has the mark of its service.
func TestReusedEntriesLeadToNoOtherBackend(t *testing.T) {
	nettest.NeedBPF(t)
	r := newUnattached(t)
	c := r.config()
	c.Memory = memoryOf(floodTable)
	r.openWith(t, c, true)
	t.Cleanup(func() { r.Table.Close() })
	r.setSelf(t)
	r.linked.attach(t)

	p, err := planner.New("node-1", servicetest.Limits)
	errtest.Must(t, err)
	s, err := r.State()
	errtest.Must(t, err)
	p.Adopt(s)
	backends := []*nettest.NS{r.pod, r.other}
	for i, to := range []string{"198.18.1.5", otherAt[0]} {
		name := fmt.Sprintf("service-%d", i)
		svc, slice := servicetest.Named(name, fmt.Sprintf("198.18.0.%d", 10+i)),
			servicetest.SliceOf(name, to)
		svc.LoadBalancerIPs = []netip.Addr{markedService(i)}
		servicetest.Place(&slice, "node-1")
		p.PutService(svc)
		p.PutSlice(slice)
		nettest.AddRoute(t, r.client, netip.PrefixFrom(markedService(i), 32),
			netip.MustParseAddr("198.19.0.1"), "u0")
		backends[i].Exec(t, "nft", fmt.Sprintf("table inet others { counter %s { }; counter %s { }; "+
			"chain p { type filter hook prerouting priority -500; "+
			"udp dport 5353 @th,64,8 %d counter name %[1]s drop; "+
			"udp dport 5353 counter name %[2]s drop; }; }", seen, stopped, mark(i)))
	}
	errtest.Must(t, r.Apply(p.Plan()))

	n := reused
	if nettest.Long() {
		n = longReused
	}
	var both errgroup.Group
	for cpu := range 2 {
		both.Go(func() error { return r.client.Do(func() error { return sendMarked(cpu, n/2) }) })
	}
	errtest.Must(t, both.Wait())

	right, wrong := 0, 0
	for _, b := range backends {
		right += countIn(t, b, seen)
		wrong += countIn(t, b, stopped)
	}
	t.Logf("of %d datagrams, %d came to a backend of their service", n, right)
	if wrong > 0 || right < n/10 {
		t.Errorf("%d came to another backend, %d to a backend of their service", wrong, right)
	}
}

// markedService returns the address of service i, and mark the first byte of its datagrams.
func markedService(i int) netip.Addr { return netip.AddrFrom4([4]byte{198, 19, 0, byte(70 + i)}) }
func mark(i int) byte                { return byte('a' + i) }

// sendMarked sends n datagrams to both services on one processor. Half of them belong to a few
// flows, whose entries stay in the flow table, and half to thousands.
func sendMarked(cpu, n int) error {
	var all, one unix.CPUSet
	if err := unix.SchedGetaffinity(0, &all); err != nil {
		return err
	}
	one.Set(cpu % runtime.NumCPU())
	if err := unix.SchedSetaffinity(0, &one); err != nil {
		return err
	}
	defer unix.SchedSetaffinity(0, &all)
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_RAW)
	if err != nil {
		return err
	}
	defer unix.Close(fd)

	const few, many = 40, 4000
	for i := range n {
		flow := rand.IntN(few)
		if i%2 == 1 {
			flow = rand.IntN(many)
		}
		to := rand.IntN(2)
		dst := markedService(to).As4()
		src := [4]byte{198, 19, 0, byte(100 + flow%100)}
		p := append(firstPacket(unix.IPPROTO_UDP, src, dst, uint16(20000+flow/100)), mark(to))
		binary.BigEndian.PutUint16(p[2:], uint16(len(p)))
		binary.BigEndian.PutUint16(p[24:], uint16(len(p)-20))
		if err := unix.Sendto(fd, p, 0, &unix.SockaddrInet4{Addr: dst}); err != nil {
			return err
		}
	}
	return nil
}
