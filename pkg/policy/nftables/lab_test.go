package nftables_test

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/policy"
	"github.com/kubeveil/kubeveil/pkg/policy/nftables"
	"github.com/kubeveil/kubeveil/pkg/policy/policytest"
)

// lab is a node with the links of some pods and one link to everything else. The pods have the
// addresses policytest.PodAddrs of their numbers.
//
//	pod 1 ── vpod1 ┐
//	pod 2 ── vpod2 ┼─ node ── up ── rest: addresses of all other pods, and of the outside
//	…              ┘
type lab struct {
	t    *testing.T
	node *nettest.NS
	pods map[int]*nettest.NS
	rest *nettest.NS
	// captures holds a capture at eth0 for each namespace except the node's namespace.
	captures map[*nettest.NS]*nettest.Capture
	table    nftables.PolicyTable
	id       uint64
}

const nodeMAC, endMAC = "02:00:00:00:00:01", "02:00:00:00:00:02"

func newLab(t *testing.T, pods ...int) *lab {
	ip := nettest.NeedProgram(t, "ip")
	l := &lab{t: t, node: nettest.NewNS(t), rest: nettest.NewNS(t), pods: map[int]*nettest.NS{},
		captures: map[*nettest.NS]*nettest.Capture{}}
	t.Cleanup(func() { l.table.Close() })
	l.node.Run(t, forward)

	commands := map[*nettest.NS]string{}
	in := func(ns *nettest.NS, format string, args ...any) {
		commands[ns] += fmt.Sprintf(format, args...) + "\n"
	}
	add := func(link string, end *nettest.NS, group uint32) {
		nettest.Veth(t, nettest.End{NS: l.node, Name: link}, nettest.End{NS: end, Name: "eth0"})
		in(l.node, "link set %s address %s group %d", link, nodeMAC, group)
		in(l.node, "addr add 169.254.1.1/32 dev %s", link)
		in(l.node, "addr add fe80::1/64 nodad dev %s", link)
		in(end, "link set eth0 address %s", endMAC)
		in(end, "route add 169.254.1.1 dev eth0")
		in(end, "route add default via 169.254.1.1")
		in(end, "route add ::/0 via fe80::1 dev eth0")
		in(end, "neigh replace 169.254.1.1 lladdr %s dev eth0", nodeMAC)
		in(end, "neigh replace fe80::1 lladdr %s dev eth0", nodeMAC)
		l.captures[end] = nettest.NewCapture(t, end, nettest.SnifferOptions{Link: "eth0"})
	}
	address := func(link string, end *nettest.NS, addrs ...netip.Addr) {
		for _, a := range addrs {
			p := netip.PrefixFrom(a, a.BitLen())
			nettest.AddAddr(t, end, "eth0", p)
			in(l.node, "route add %s dev %s", p, link)
			in(l.node, "neigh replace %s lladdr %s dev %s", a, endMAC, link)
		}
	}

	add("up", l.rest, 0)
	address("up", l.rest, policytest.Outside...)
	for i := 1; i <= policytest.Pool; i++ {
		end, link := l.rest, "up"
		for _, n := range pods {
			if n == i {
				link = fmt.Sprint("vpod", i)
				end = nettest.NewNS(t)
				l.pods[i] = end
				add(link, end, abi.PodGroup)
			}
		}
		address(link, end, policytest.PodAddrs(i)...)
	}
	for ns, lines := range commands {
		batch(t, ns, ip, lines)
	}
	return l
}

// forward makes the node forward packets. Packets of tests have no checksum, so conntrack's check
// is switched off.
func forward() error {
	for name, value := range map[string]string{"ipv4/ip_forward": "1",
		"ipv6/conf/all/forwarding":        "1",
		"netfilter/nf_conntrack_checksum": "0"} {
		if err := os.WriteFile("/proc/sys/net/"+name, []byte(value), 0o644); err != nil &&
			!strings.Contains(name, "conntrack") {
			return err
		}
	}
	return nil
}

// batch runs commands of ip(8), one per line, in one process, because a process per command takes
// most of an emulated machine's time.
func batch(t *testing.T, ns *nettest.NS, ip, lines string) {
	t.Helper()
	ns.Run(t, func() error { return nettest.Feed(lines, ip, "-batch", "-") })
}

func (l *lab) run(ns *nettest.NS, program, args string) {
	l.t.Helper()
	ns.Run(l.t, func() error {
		_, err := command(l.t, program, args)
		return err
	})
}

// output runs a program on the node and returns its output.
func (l *lab) output(program, args string) (out string) {
	l.t.Helper()
	l.node.Run(l.t, func() (err error) {
		out, err = command(l.t, program, args)
		return err
	})
	return out
}

func command(t *testing.T, program, args string) (string, error) {
	out, err := exec.CommandContext(t.Context(), program, strings.Fields(args)...).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w: %s", program, args, err, out)
	}
	return string(out), nil
}

// apply applies a plan on the node and returns how many changes it took.
func (l *lab) apply(plan *policy.Plan) (changes int) {
	l.t.Helper()
	l.node.Run(l.t, func() (err error) {
		result, err := l.table.Apply(plan)
		changes = result.Changes
		return err
	})
	return changes
}

// at returns the namespace that has an address, and whether it is a pod of the node.
func (l *lab) at(a netip.Addr) (*nettest.NS, bool) {
	for i, ns := range l.pods {
		for _, b := range policytest.PodAddrs(i) {
			if a == b {
				return ns, true
			}
		}
	}
	return l.rest, false
}

// tag precedes the number of a packet at its end.
const tag = "kvpolicy"

// send sends the first packets of flows and returns which of them arrived. Each packet has its own
// source port. send waits for the expected packets, and a moment longer for the others.
func (l *lab) send(flows []policy.Flow, expected func(policy.Flow) bool) (arrived []bool) {
	l.t.Helper()
	first := l.id
	frames := map[*nettest.NS][][]byte{}
	for _, f := range flows {
		ns, _ := l.at(f.Src)
		frames[ns] = append(frames[ns], packet(f, l.id))
		l.id++
	}
	for ns, list := range frames {
		ns.Run(l.t, func() error { return nettest.SendFrames("eth0", list...) })
	}

	for deadline := time.Now().Add(expectation); ; {
		time.Sleep(settle)
		arrived = l.arrived(first, len(flows))
		missing := false
		for i, f := range flows {
			missing = missing || !arrived[i] && expected(f)
		}
		if !missing || time.Now().After(deadline) {
			return arrived
		}
	}
}

// arrived reports which of the packets numbered from first on were captured.
func (l *lab) arrived(first uint64, count int) []bool {
	arrived := make([]bool, count)
	for _, c := range l.captures {
		for _, f := range c.Frames() {
			i := strings.LastIndex(string(f.Data), tag)
			if i < 0 || f.Outgoing || len(f.Data) < i+len(tag)+8 {
				continue
			}
			if n := binary.BigEndian.Uint64(f.Data[i+len(tag):]); n >= first && n < l.id {
				arrived[n-first] = true
			}
		}
	}
	return arrived
}

// settle is longer than the time for which a capture's ring holds a frame back (10 ms). Packets are
// forwarded before the send returns.
const settle = 60 * time.Millisecond

// sourcePort is the source port of a packet by its number.
func sourcePort(id uint64) uint16 { return uint16(10000 + id%50000) }

// packet is the first packet of a flow as an Ethernet frame.
func packet(f policy.Flow, id uint64) []byte {
	payload := binary.BigEndian.AppendUint64([]byte(tag), id)
	sport := sourcePort(id)
	var l4 []byte
	proto := byte(f.Proto)
	switch f.Proto {
	case policy.TCP:
		l4 = binary.BigEndian.AppendUint16(l4, sport)
		l4 = binary.BigEndian.AppendUint16(l4, f.Port)
		flags := byte(2) // SYN
		if f.Midstream {
			flags = 0x10 // ACK
		}
		l4 = append(l4, 0, 0, 0, 1, 0, 0, 0, 0, 5<<4, flags, 1, 0, 0, 0, 0, 0)
	case policy.UDP:
		l4 = binary.BigEndian.AppendUint16(l4, sport)
		l4 = binary.BigEndian.AppendUint16(l4, f.Port)
		l4 = binary.BigEndian.AppendUint16(l4, uint16(8+len(payload)))
		l4 = append(l4, 0, 0)
	case policy.SCTP:
		l4 = binary.BigEndian.AppendUint16(l4, sport)
		l4 = binary.BigEndian.AppendUint16(l4, f.Port)
		l4 = append(l4, make([]byte, 8)...)            // tag 0, no checksum
		l4 = append(l4, 1, 0, 0, byte(4+len(payload))) // INIT
	default: // echo request
		if f.Src.Is6() {
			proto = unix.IPPROTO_ICMPV6
			l4 = append(l4, 128, 0, 0, 0)
		} else {
			l4 = append(l4, 8, 0, 0, 0)
		}
		l4 = binary.BigEndian.AppendUint16(l4, sport)
		l4 = append(l4, 0, 1)
	}
	l4 = append(l4, payload...)

	mac := func(s string) []byte {
		var b [6]byte
		fmt.Sscanf(s, "%x:%x:%x:%x:%x:%x", &b[0], &b[1], &b[2], &b[3], &b[4], &b[5])
		return b[:]
	}
	frame := append(mac(nodeMAC), mac(endMAC)...)
	if f.Src.Is6() {
		frame = append(frame, 0x86, 0xdd, 0x60, 0, 0, 0)
		frame = binary.BigEndian.AppendUint16(frame, uint16(len(l4)))
		frame = append(frame, proto, 64)
	} else {
		head := []byte{0x45, 0}
		head = binary.BigEndian.AppendUint16(head, uint16(20+len(l4)))
		head = append(head, 0, 0, 0, 0, 64, proto, 0, 0)
		head = append(append(head, f.Src.AsSlice()...), f.Dst.AsSlice()...)
		var sum uint32
		for i := 0; i < 20; i += 2 {
			sum += uint32(binary.BigEndian.Uint16(head[i:]))
		}
		sum = sum>>16 + sum&0xffff
		sum += sum >> 16
		binary.BigEndian.PutUint16(head[10:], ^uint16(sum))
		return append(append(append(frame, 8, 0), head...), l4...)
	}
	frame = append(append(frame, f.Src.AsSlice()...), f.Dst.AsSlice()...)
	return append(frame, l4...)
}

// flows returns the flows of policytest as this node's links see them.
func (l *lab) flows() (out []policy.Flow) {
	type key struct {
		src, dst netip.Addr
		proto    policy.Proto
		port     uint16
		mid      bool
	}
	seen := map[key]bool{}
	for _, f := range policytest.Flows() {
		_, f.FromPod = l.at(f.Src)
		_, f.ToPod = l.at(f.Dst)
		f.ToNode = false // No flow has an address of the node.
		k := key{f.Src, f.Dst, f.Proto, f.Port, f.Midstream}
		// A packet within one namespace does not pass the node.
		if from, to := l.ends(f); from == to || seen[k] {
			continue
		}
		seen[k] = true
		out = append(out, f)
	}
	return out
}

func (l *lab) ends(f policy.Flow) (from, to *nettest.NS) {
	from, _ = l.at(f.Src)
	to, _ = l.at(f.Dst)
	return from, to
}
