package bpf

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/service"
	"github.com/kubeveil/kubeveil/pkg/service/planner"
)

// lab is a client, two nodes with a pod each, and a tunnel between them. The tunnel passes only
// packets that a peer's allowed IPs would accept:
//
//	client u0 198.19.128.1 ─── u0 198.19.128.2 node 1 vpod .254 ─── p0 198.18.1.5 pod 1
//	          fd42:ff::1       fd42:ff::2        │ veil0
//	                                             │ veil0
//	                                          node 2 vpod .254 ─── p0 198.18.2.5 pod 2
//
// Node 1 has the programs.
type lab struct {
	client, node1, node2, pod1, pod2 *nettest.NS
	coll                             *ebpf.Collection
	guard                            *ebpf.Collection
	planner                          *planner.Planner
	refused                          atomic.Uint64 // packets that the tunnel did not let pass
}

// Addresses of the lab by family.
var labAddrs = []struct{ name, client, node, vip, other, cluster, pod1, pod2, self string }{
	{"IPv4", "198.19.128.1", "198.19.128.2", "198.19.200.1", "198.19.200.2", "198.18.200.1",
		"198.18.1.5", "198.18.2.5", "198.18.1.1"},
	{"IPv6", "fd42:ff::1", "fd42:ff::2", "fd42:fe::1", "fd42:fe::2", "fd42:200::1", "fd42:1::5",
		"fd42:1:0:2::5", "fd42:1::1"},
}

func newLab(t *testing.T) *lab {
	t.Helper()
	nettest.NeedTUN(t)
	l := &lab{coll: packets(t)}
	for _, ns := range []**nettest.NS{&l.client, &l.node1, &l.node2, &l.pod1, &l.pod2} {
		*ns = nettest.NewNS(t)
	}

	end := func(ns *nettest.NS, name string, addrs ...string) nettest.End {
		return nettest.End{NS: ns, Name: name, Addrs: nettest.Prefixes(addrs...)}
	}
	nettest.Veth(t, end(l.client, "u0", "198.19.128.1/24", "fd42:ff::1/64"),
		end(l.node1, "u0", "198.19.128.2/24", "fd42:ff::2/64"))
	nettest.Veth(t, end(l.pod1, "p0", "198.18.1.5/24", "fd42:1::5/64"),
		end(l.node1, "vpod", "198.18.1.254/24", "fd42:1::fe/64"))
	nettest.Veth(t, end(l.pod2, "p0", "198.18.2.5/24", "fd42:1:0:2::5/64"),
		end(l.node2, "vpod", "198.18.2.254/24", "fd42:1:0:2::fe/64"))

	for _, r := range []struct {
		ns      *nettest.NS
		dst, gw string
	}{
		{l.client, "198.19.200.0/24", "198.19.128.2"},
		{l.client, "fd42:fe::/64", "fd42:ff::2"},
		{l.pod1, "0.0.0.0/0", "198.18.1.254"},
		{l.pod1, "::/0", "fd42:1::fe"},
		{l.pod1, "198.18.1.1/32", "198.18.1.254"}, // real pods have no neighbours
		{l.pod1, "fd42:1::1/128", "fd42:1::fe"},
		{l.pod2, "0.0.0.0/0", "198.18.2.254"},
		{l.pod2, "::/0", "fd42:1:0:2::fe"},
	} {
		dev := "p0"
		if r.ns == l.client {
			dev = "u0"
		}
		nettest.AddRoute(t, r.ns, netip.MustParsePrefix(r.dst), netip.MustParseAddr(r.gw), dev)
	}

	for _, node := range []*nettest.NS{l.node1, l.node2} {
		nettest.Sysctl(t, node, "ipv4/ip_forward", "1")
		nettest.Sysctl(t, node, "ipv6/conf/all/forwarding", "1")
		nettest.TUN(t, node, "veil0")
	}

	for _, p := range nettest.Prefixes("198.18.2.0/24", "fd42:1:0:2::/64") {
		nettest.AddRoute(t, l.node1, p, netip.Addr{}, "veil0")
	}

	for _, p := range nettest.Prefixes("198.18.1.0/24", "fd42:1::/64", "198.19.128.2/32",
		"fd42:ff::2/128") {
		nettest.AddRoute(t, l.node2, p, netip.Addr{}, "veil0")
	}

	l.tunnel(t)
	l.attach(t)
	return l
}

// tunnel carries packets between the nodes. Like WireGuard, it accepts from a peer only packets
// with a source address of the peer.
func (l *lab) tunnel(t *testing.T) {
	t.Helper()
	a := nettest.OpenTUN(t, l.node1, "veil0", unix.IFF_TUN)
	b := nettest.OpenTUN(t, l.node2, "veil0", unix.IFF_TUN)
	done := make(chan struct{}, 2)
	carry := func(from, to *os.File, allowed []netip.Prefix) {
		defer func() { done <- struct{}{} }()
		buf := make([]byte, 1<<16)
		for {
			n, err := from.Read(buf)
			if err != nil {
				return
			}
			_, _, src, _, ok := splitIP(buf[:n], buf[0]>>4 == 6)
			if ok && (src.IsLinkLocalUnicast() || src.IsUnspecified()) {
				// the kernel's own, to neighbours: MLD has no source while an address is tentative
				// (RFC 3590)
				continue
			}
			if !ok || !slices.ContainsFunc(allowed,
				func(p netip.Prefix) bool { return p.Contains(src) }) {
				l.refused.Add(1)
				continue
			}
			to.Write(buf[:n])
		}
	}

	go carry(a, b, nettest.Prefixes("198.18.1.0/24", "fd42:1::/64", "198.19.128.2/32",
		"fd42:ff::2/128"))
	go carry(b, a, nettest.Prefixes("198.18.2.0/24", "fd42:1:0:2::/64"))
	t.Cleanup(func() {
		a.Close()
		b.Close()
		<-done
		<-done
	})
}

// attach attaches the programs of node 1 and the guard's.
func (l *lab) attach(t *testing.T) {
	t.Helper()
	spec, err := LoadGuardEgress()
	errtest.Must(t, err)

	for name, v := range map[string]uint32{"pod_mark": abi.PodMark,
		"tunnel_mark": abi.TunnelMark, "service_mark": abi.ServiceMark,
		"probe_port": abi.ProbePort} {
		errtest.Must(t, spec.Variables[name].Set(v))
	}

	shared := make(map[string]*ebpf.Map)
	for _, name := range []string{"ranges", "nodes", "vips", "drops"} {
		shared[name] = l.coll.Maps[name]
	}

	if l.guard, err = ebpf.NewCollectionWithOptions(spec,
		ebpf.CollectionOptions{MapReplacements: shared}); err != nil {
		t.Fatal(err)
	}

	t.Cleanup(l.guard.Close)
	errtest.Must(t, l.guard.Maps["egress_translate"].Put(uint32(0),
		program(t, l.coll, "service_out")))

	places := []struct {
		link string
		hook ebpf.AttachType
		prog *ebpf.Program
	}{
		{"u0", ebpf.AttachTCXIngress, program(t, l.coll, "service_in")},
		{"u0", ebpf.AttachTCXEgress, l.guard.Programs["guard_egress"]},
		{"vpod", ebpf.AttachTCXIngress, program(t, l.coll, "service_pod_in")},
		{"vpod", ebpf.AttachTCXEgress, program(t, l.coll, "service_pod_out")},
		{"veil0", ebpf.AttachTCXIngress, program(t, l.coll, "service_tun_in")},
		{"veil0", ebpf.AttachTCXEgress, program(t, l.coll, "service_tun_out")},
	}
	l.node1.Run(t, func() error {
		for _, at := range places {
			ifi, err := net.InterfaceByName(at.link)
			if err != nil {
				return err
			}
			attached, err := link.AttachTCX(link.TCXOptions{Interface: ifi.Index, Program: at.prog,
				Attach: at.hook})
			if err != nil {
				return fmt.Errorf("attach to %s: %w", at.link, err)
			}
			t.Cleanup(func() { attached.Close() })
		}

		return nil
	})

	for i, family := range labAddrs {
		setSelf(t, l.coll, uint32(i), family.self)
		setSelf(t, l.coll, uint32(2+i), family.node)
	}
}

func setSelf(t testing.TB, coll *ebpf.Collection, at uint32, addr string) {
	t.Helper()
	errtest.Must(t, coll.Maps["service_self"].Put(at, netip.MustParseAddr(addr).As16()))
}

// serve adds services to the maps.
func (l *lab) serve(t testing.TB, services ...labService) {
	t.Helper()
	if l.planner == nil {
		l.planner = newPlanner(t)
		l.planner.SetNodeAddrs(nettest.Addrs(labAddrs[0].node, labAddrs[1].node))
	}
	for _, s := range services {
		s.put(l.planner)
	}
	write(t, l.coll, l.planner.Plan())
}

// write writes the changes to the maps.
func write(t testing.TB, coll *ebpf.Collection, c service.Changes) {
	t.Helper()
	writeRuns(t, coll, c.Runs)
	for _, key := range c.SourceRanges {
		errtest.Must(t, coll.Maps["service_sources"].Put(key, uint32(1)))
	}
	batch(t, coll.Maps["service_fronts"], c.Frontends.Keys, c.Frontends.Values)
	for _, key := range c.DropFrontends {
		errtest.Must(t, coll.Maps["service_fronts"].Delete(key))
	}
}

// labService has port 80 of TCP and 53 of UDP, which pods serve at 8080 and 5353. Node ports are
// nodePort and nodePort+1.
type labService struct {
	name     string
	nodePort uint16
	vips     []string
	cluster  []string
	pods     []string // numbers of pods, "1" and "2"
	local    bool
	affinity time.Duration
	sources  []netip.Prefix
}

func (s labService) put(p *planner.Planner) {
	name := service.Name{Namespace: "test", Name: s.name}
	out := service.Service{
		Name: name, LoadBalancerIPs: nettest.Addrs(s.vips...),
		ClusterIPs:   nettest.Addrs(s.cluster...),
		SourceRanges: s.sources, ExternalLocal: s.local, Affinity: s.affinity,
		Ports: []service.Port{{Name: "web", Protocol: service.TCP, Port: 80},
			{Name: "dns", Protocol: service.UDP, Port: 53}},
	}
	if s.nodePort != 0 {
		out.Ports[0].NodePort, out.Ports[1].NodePort = s.nodePort, s.nodePort+1
	}
	p.PutService(out)
	slice := service.Slice{Service: name, Name: "1",
		Ports: []service.SlicePort{{Name: "web", Protocol: service.TCP, Port: 8080},
			{Name: "dns", Protocol: service.UDP, Port: 5353}}}
	for _, pod := range s.pods {
		for _, f := range labAddrs {
			addr := map[string]string{"1": f.pod1, "2": f.pod2}[pod]
			slice.Endpoints.Append(
				service.Endpoint{Addr: netip.MustParseAddr(addr), Node: "node-" + pod, Ready: true,
					Serving: true})
		}
	}
	p.PutSlice(slice)
}

// pods starts servers in the pods. The TCP and UDP servers reply with the pod's number, the
// client's address, and the received data.
func (l *lab) pods(t *testing.T) {
	t.Helper()
	for number, ns := range map[string]*nettest.NS{"1": l.pod1, "2": l.pod2} {
		ns.Run(t, func() error {
			tcp, err := net.Listen("tcp", ":8080")
			if err != nil {
				return err
			}
			udp, err := net.ListenUDP("udp", &net.UDPAddr{Port: 5353})
			if err != nil {
				return err
			}
			t.Cleanup(func() { tcp.Close(); udp.Close() })
			go answerTCP(tcp, number)
			go answerUDP(udp, number)
			return nil
		})
	}
}

func answerTCP(l net.Listener, number string) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer c.Close()
			fmt.Fprintf(c, "%s %s\n", number,
				c.RemoteAddr().(*net.TCPAddr).AddrPort().Addr().Unmap())
			io.Copy(c, c)
		}()
	}
}

func answerUDP(c *net.UDPConn, number string) {
	buf := make([]byte, 1<<16)
	for {
		n, from, err := c.ReadFromUDPAddrPort(buf)
		if err != nil {
			return
		}
		c.WriteToUDPAddrPort(fmt.Appendf(nil, "%s %s\n%s", number, from.Addr().Unmap(), buf[:n]),
			from)
	}
}
