package bpf

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/abi"
)

// wire is a link, with or without Ethernet headers, whose other end is a file. The file gets the
// packets that a program at egress passes. Unlike the kernel's test run, a wire accepts packets
// that end inside the IP header. Programs for ingress run at egress here too, because they see the
// same data: a packet from its link header on.
type wire struct {
	ns    *nettest.NS
	index int
	skip  int // bytes of a frame before the header that the link has
	far   *os.File
}

// newWire creates a wire of a kind: IFF_TAP or IFF_TUN. It routes pods' addresses to a TAP.
func newWire(t *testing.T, kind uint16) wire {
	t.Helper()
	nettest.NeedTUN(t)
	w := wire{ns: nettest.NewNS(t)}
	w.far = nettest.OpenTUN(t, w.ns, "w0", kind)
	t.Cleanup(func() { w.far.Close() })
	nettest.Sysctl(t, w.ns, "ipv4/ip_forward", "1")
	nettest.Sysctl(t, w.ns, "ipv6/conf/all/forwarding", "1")
	if kind == unix.IFF_TUN {
		w.skip = ethernet
		// The test could not distinguish its packets from packets that the kernel sends by itself.
		nettest.Sysctl(t, w.ns, "ipv6/conf/w0/disable_ipv6", "1")
	}

	h := w.ns.Handle()
	l, err := h.LinkByName("w0")
	if err == nil {
		err = h.LinkSetUp(l)
	}
	errtest.Must(t, err)

	w.index = l.Attrs().Index
	if kind == unix.IFF_TAP {
		for _, p := range nettest.Prefixes("198.18.1.0/24", "198.18.2.0/24", "fd42:1::/64",
			"fd42:1:0:2::/64") {
			nettest.AddRoute(t, w.ns, p, netip.Addr{}, "w0")
		}
	}

	return w
}

// pass sends frames with a mark and returns the frames at the other end, in the order of sending.
func (w wire) pass(t *testing.T, mark uint32, frames ...[]byte) (out [][]byte) {
	t.Helper()
	end := frame([]byte("end"), unused)
	w.ns.Run(t, func() error {
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_MARK, int(mark)); err != nil {
			return err
		}
		for _, f := range append(slices.Clone(frames), end) {
			to := unix.SockaddrLinklayer{Ifindex: w.index,
				Protocol: binary.NativeEndian.Uint16(f[12:])}
			// dropped
			if err := unix.Sendto(fd, f[w.skip:], 0, &to); err != nil &&
				!errors.Is(err, unix.ENOBUFS) {
				return fmt.Errorf("send %x: %w", f, err)
			}
		}
		return nil
	})

	buf := make([]byte, 2048)
	w.far.SetReadDeadline(time.Now().Add(wirePatience))
	for {
		n, err := w.far.Read(buf)
		errtest.Must(t, err)
		if bytes.Equal(buf[:n], end[w.skip:]) {
			return out
		}
		if buf[0] != 0x33 { // leave out the kernel's own multicast (RFC 2464 section 7)
			out = append(out, bytes.Clone(buf[:n]))
		}
	}
}

// knownAt returns how long a frame must be for the programs to find its flow: up to the end of the
// TCP or UDP header, or of the ports of an inner packet.
func knownAt(f []byte) int {
	six := binary.BigEndian.Uint16(f[12:]) == ipv6
	proto, rest, _, _, _ := splitIP(f[ethernet:], six)
	if proto == unix.IPPROTO_TCP || proto == unix.IPPROTO_UDP {
		return len(f)
	}
	_, l4, _, _, _ := splitIP(rest[8:], six)
	return len(f) - len(l4) + 4
}

// expectCut runs a program on a frame that it translates, whole and cut at every length. If the cut
// frame still contains the key of its flow, the same bytes of the translated frame must come out.
// Otherwise the frame must come out unchanged, or the guard must drop it.
func (w wire) expectCut(t *testing.T, coll *ebpf.Collection, prog string, full []byte,
	mark uint32) {
	t.Helper()
	p := program(t, coll, prog)
	var attached link.Link
	w.ns.Run(t, func() (err error) {
		attached, err = link.AttachTCX(link.TCXOptions{Interface: w.index,
			Program: p, Attach: ebpf.AttachTCXEgress})
		return err
	})
	defer attached.Close()
	whole := w.pass(t, mark, full)
	if len(whole) != 1 || len(whole[0]) != len(full)-w.skip ||
		bytes.Equal(whole[0], full[w.skip:]) {
		t.Fatalf("%s on %x, whole: became %x, want it translated", prog, full, whole)
	}

	var in, want [][]byte
	for n := ethernet + 1; n < len(full); n++ {
		in = append(in, full[:n])
		switch {
		case n >= knownAt(full):
			want = append(want, whole[0][:n-w.skip])
		case !strings.HasPrefix(prog, "service_out"):
			want = append(want, full[w.skip:n])
		}
	}

	before := judged(t, coll)
	got := w.pass(t, mark, in...)
	if drops := judged(t, coll) - before; !slices.EqualFunc(got, want, bytes.Equal) ||
		drops != len(in)-len(want) {
		t.Errorf("%s on %x, cut: %d of %d came out and %d were dropped, want %d\n out %x\nwant %x",
			prog, full, len(got), len(in), drops, len(want), got, want)
	}
}

// judged returns how many packets service_out and service_out_l3 dropped in the guard's place.
func judged(t *testing.T, coll *ebpf.Collection) (n int) {
	t.Helper()
	for _, count := range (loaded{drops: map[string]*ebpf.Map{"": coll.Maps["drops"]}}).counts(t,
		"") {
		n += int(count)
	}
	return n
}

// TestPacketsThatAreCut sends packets of known flows to all programs: requests, replies and ICMP
// errors about both.
func TestPacketsThatAreCut(t *testing.T) {
	coll, frames, bare := served(t), newWire(t, unix.IFF_TAP), newWire(t, unix.IFF_TUN)
	met := make(map[string]bool)
	for i, a := range labAddrs {
		for offset, proto := range []byte{unix.IPPROTO_TCP, unix.IPPROTO_UDP} {
			podPort := []uint16{8080, 5353}[offset]
			node, there := at(a.node, 30080+uint16(offset)), at(a.node, 30090+uint16(offset))
			pod, pod2 := at(a.pod1, podPort), at(a.pod2, podPort)
			client, inside := at(a.client, 40000), at(a.pod2, 40000)
			router := netip.MustParseAddr([]string{"198.19.131.7", "fd42:fc::7"}[i])
			of := func(from, to netip.AddrPort) []byte {
				return segment(from, to, proto, tcpACK, "")
			}

			for _, to := range []netip.AddrPort{node, there} {
				passed(t, coll, "service_in", segment(client, to, proto, tcpSYN, ""), 0)
			}
			passed(t, coll, "service_pod_in", segment(inside, node, proto, tcpSYN, ""), 0)
			sent, _ := passed(t, coll, "service_pod_out", of(client, pod2), servedMark)
			_, l4, _, _, _ := splitIP(sent[ethernet:], router.Is6())
			self := at(a.self, binary.BigEndian.Uint16(l4))

			in, out := []string{"service_in", "service_in_l3"},
				[]string{"service_out", "service_out_l3"}
			for _, c := range []struct {
				situation string
				progs     []string
				full      []byte
				mark      uint32
			}{
				{"a request", in, of(client, node), 0},
				{"a router, about an answer", in,
					message(router, node.Addr(), of(node, client)), 0},
				{"an answer", out, of(pod, client), servedMark},
				{"another node's answer", out, of(pod2, client), abi.ServiceMark},
				{"the pod, about a request", out,
					message(pod.Addr(), client.Addr(), of(client, pod)), servedMark},
				{"this node, about a request", out,
					message(node.Addr(), client.Addr(), of(client, pod)), 0},
				{"a pod's request", []string{"service_pod_in"}, of(inside, node), 0},
				{"a pod, about an answer", []string{"service_pod_in"},
					message(inside.Addr(), node.Addr(), of(node, inside)), 0},
				{"an answer to a pod", []string{"service_pod_out"}, of(pod, inside),
					abi.ServiceMark},
				{"a pod, about a pod's request", []string{"service_pod_out"},
					message(pod.Addr(), inside.Addr(), of(inside, pod)), abi.ServiceMark},
				{"a request into the tunnel", []string{"service_tun_out"}, of(client, pod2),
					servedMark},
				{"a router, about an answer by the tunnel", []string{"service_tun_out"},
					message(router, pod2.Addr(), of(pod2, client)), servedMark},
				{"an answer by the tunnel", []string{"service_tun_in"}, of(pod2, self), 0},
				{"another node's pod, about a request", []string{"service_tun_in"},
					message(pod2.Addr(), self.Addr(), of(self, pod2)), 0},
			} {
				for _, prog := range c.progs {
					met[prog] = true
					t.Run(fmt.Sprintf("%s/%d/%s/%s", a.name, proto, c.situation, prog),
						func(t *testing.T) {
							w := frames
							if strings.HasSuffix(prog, "_l3") ||
								strings.HasPrefix(prog, "service_tun") {
								w = bare
							}
							w.expectCut(t, coll, prog, c.full, c.mark)
						})
				}
			}
		}
	}

	for prog := range specOf(t, coll).Programs {
		if !met[prog] {
			t.Errorf("%s gets no packets", prog)
		}
	}
}
