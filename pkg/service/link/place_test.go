package link

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/internal/nl"
	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/guard"
	"github.com/kubeveil/kubeveil/pkg/service/bpfmaps"
	"github.com/kubeveil/kubeveil/pkg/service/link/hook"
	"github.com/kubeveil/kubeveil/pkg/service/vip"
)

// ip runs commands of the program ip on the host.
func (l *linked) ip(t *testing.T, commands ...string) {
	t.Helper()
	program := nettest.NeedProgram(t, "ip")
	for _, args := range commands {
		l.host.Exec(t, program, strings.Fields(args)...)
	}
}

func (l *linked) guard(t *testing.T, vips ...string) {
	t.Helper()
	l.host.Run(t, func() error {
		_, err := l.g.Apply(guard.Settings{
			Ranges:    nettest.Prefixes("198.18.0.0/16", "fd42:1::/48"),
			NodeAddrs: nettest.Addrs("198.19.0.1", "fd42:9::1"), VIPs: nettest.Addrs(vips...),
		})
		return err
	})
}

// TestPortsLeaveItToTheirMaster has a bridge that takes the MAC address of its port, so incoming
// packets are for the host at both links. Only the bridge gets programs.
func TestPortsLeaveItToTheirMaster(t *testing.T) {
	bothHooks(t, func(t *testing.T, withTCX bool) {
		l := newLinked(t, withTCX)
		l.serve(t)
		l.attach(t)
		l.ip(t, "link add br0 type bridge", "link set u0 master br0", "addr flush dev u0",
			"link set br0 up",
			"addr add 198.19.0.1/24 dev br0", "addr add fd42:9::1/64 dev br0 nodad")
		l.guard(t)
		want := []string{"attached service_in at br0 ingress", "detached programs at u0 ingress"}
		if diff := cmp.Diff(want, l.attach(t)); diff != "" {
			t.Error(diff)
		}
		l.expectServed(t)
		l.ip(t, "link set u0 nomaster")
		if changed := l.attach(t); !slices.Contains(changed, "attached service_in at u0 ingress") {
			t.Errorf("changes at a link that is not a port any more: %v", changed)
		}
	})
}

// TestLinksWithALimitAreLeftAlone has a pod's link without tcx on which the plugin bandwidth has
// taken the place of clsact.
func TestLinksWithALimitAreLeftAlone(t *testing.T) {
	nettest.NeedBPF(t)
	l := newLinked(t, false)
	h, vpod := l.host.Handle(), l.host.Link("vpod1")
	qdisc := &nl.GenericQdisc{QdiscAttrs: nl.QdiscAttrs{LinkIndex: vpod.Attrs().Index,
		Handle: 0xffff0000, Parent: nl.ClsactParent}, QdiscType: "ingress"}
	errtest.Must(t, h.QdiscAdd(qdisc))
	want := slices.DeleteFunc(slices.Clone(attachedLinks),
		func(s string) bool { return strings.Contains(s, "vpod1") })
	if diff := cmp.Diff(want, l.attach(t)); diff != "" {
		t.Error(diff)
	}

	for _, dir := range []direction{ingress, egress} {
		ids, err := hook.New(false).List(h, hook.Point{Index: vpod.Attrs().Index, Dir: dir})
		if err != nil || len(ids) > 0 {
			t.Errorf("programs at the %s of a link with another's qdisc: %v, %v", dir, ids, err)
		}
	}

	// Once the limit is removed, the programs can be attached.
	errtest.Must(t, h.QdiscDel(qdisc))
	if changed := l.attach(t); len(changed) != 2 {
		t.Errorf("without the limit AttachLinks changed %v", changed)
	}
}

// mprogMax bounds the programs of a hook of tcx (bpf_mprog_max, include/linux/bpf_mprog.h).
const mprogMax = 63

// crowd leaves no room for a program at the ingress of a link.
func (l *linked) crowd(t *testing.T, name string) {
	t.Helper()
	p := hook.Point{Index: l.host.Link(name).Attrs().Index, Dir: ingress}
	if l.tcx {
		for i := range mprogMax {
			prog := loadProgram(t, asm.Mov.Imm(asm.R1, int32(i)), asm.Mov.Imm(asm.R0, -1),
				asm.Return())
			l.host.Run(t, func() error { return hook.New(true).Attach(nil, p, "", prog) })
		}
		return
	}

	tc := nettest.NeedProgram(t, "tc")
	for _, line := range []string{
		"qdisc add dev " + name + " clsact",
		fmt.Sprintf("filter add dev %s ingress prio %d u32 match u32 0 0", name,
			hook.FilterPriority),
	} {
		l.host.Exec(t, tc, strings.Fields(line)...)
	}
}

func loadProgram(t *testing.T, insns ...asm.Instruction) *ebpf.Program {
	t.Helper()
	prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "crowd", Type: ebpf.SchedCLS, License: "GPL", Instructions: insns,
	})
	errtest.Must(t, err)
	t.Cleanup(func() { prog.Close() })
	return prog
}

func TestLinkWithoutRoomKeepsNoOtherFromItsPrograms(t *testing.T) {
	bothHooks(t, func(t *testing.T, withTCX bool) {
		l := newLinked(t, withTCX)
		l.crowd(t, "vpod1")
		want := slices.DeleteFunc(slices.Clone(attachedLinks), func(s string) bool {
			return strings.HasSuffix(s, "vpod1 ingress")
		})
		if diff := cmp.Diff(want, l.attach(t)); diff != "" {
			t.Error(diff)
		}
	})
}

// TestPodsWithALimitCanBeAdded adds pods' links while links are watched, without tcx. The plugin
// bandwidth must find its place free.
func TestPodsWithALimitCanBeAdded(t *testing.T) {
	nettest.NeedBPF(t)
	l := newLinked(t, false)
	h := l.host.Handle()
	add := func(name string, group uint32) hook.Point {
		attrs := nl.NewLinkAttrs()
		attrs.Name, attrs.Group = name, group
		errtest.Must(t, h.LinkAdd(&nl.Veth{LinkAttrs: attrs, PeerName: name + "p"}))
		link, err := h.LinkByName(name)
		errtest.Must(t, err)
		return hook.Point{Index: link.Attrs().Index, Dir: ingress}
	}

	served := func(p hook.Point) bool {
		ids, err := hook.New(false).List(h, p)
		return err == nil && len(ids) > 0
	}
	l.attach(t)
	stop := l.watch(t, "u9", time.Hour)
	pod := add("vpod2", abi.PodGroup)
	after := add("u9", 0) // seen behind it
	nettest.Until(t, 10*time.Second, "links are served", func() bool { return served(after) })
	if served(pod) {
		t.Error("a pod's new link has programs before its limit can have its place")
	}
	limit := &nl.GenericQdisc{QdiscAttrs: nl.QdiscAttrs{LinkIndex: pod.Index, Handle: 0xffff0000,
		Parent: nl.ClsactParent}, QdiscType: "ingress"}
	if err := h.QdiscAdd(limit); err != nil {
		t.Errorf("the limit finds its place taken: %v", err)
	}

	stop()
	stop = l.watch(t, "u9", time.Millisecond)
	other := add("vpod3", abi.PodGroup)
	nettest.Until(t, 10*time.Second, "a pod's link without a limit is served",
		func() bool { return served(other) })
	if served(pod) {
		t.Error("a pod's link with a limit has programs")
	}

	stop()
}

// TestBalancersAreAnsweredAndNotReached has a balancer that does not keep its clients' addresses,
// so it connects from the service's own address. A pod can answer it but not connect to it.
func TestBalancersAreAnsweredAndNotReached(t *testing.T) {
	bothHooks(t, func(t *testing.T, withTCX bool) {
		l := newLinked(t, withTCX)
		l.serve(t)
		l.attach(t)
		l.guard(t, "198.19.0.9", "fd42:9::9")
		l.expectServed(t)
		for _, to := range []string{"198.19.0.9:8080", "[fd42:9::9]:8080"} {
			if out, err := visit(l.pod, to); !errors.Is(err, unix.ECONNREFUSED) {
				t.Errorf("a pod reaches the balancer at %s: %q, %v", to, out, err)
			}
		}
		if n := l.dropped(t)["pod_to_vip"]; n > 0 {
			t.Errorf("the guard dropped %d packets that are answers or were refused", n)
		}
	})
}

// TestForgottenFlowsStayInside has a pod, whose sockets have no programs, that sends on a
// connection after the flow tables lost it. The balancer's address is on the client's host, and
// another program masquerades packets that leave there.
func TestForgottenFlowsStayInside(t *testing.T) {
	bothHooks(t, func(t *testing.T, withTCX bool) {
		l := newLinked(t, withTCX)
		vips := []string{"198.19.0.66", "fd42:9::66"}
		for i, a := range nettest.Addrs(vips...) {
			nettest.AddAddr(t, l.client, "u0", netip.PrefixFrom(a, a.BitLen()))
			// real pods have no other neighbours
			self := nettest.Prefixes("198.18.1.1/32", "fd42:1::1/128")[i]
			nettest.AddRoute(t, l.pod, self, nettest.Addrs("198.18.1.254", "fd42:1::fe")[i], "p0")
		}

		l.serve(t, vips...)
		l.attach(t)
		l.host.Exec(t, "nft", "table inet others { chain c { type nat hook postrouting "+
			"priority 100; oifname u0 masquerade; }; }")
		wire := nettest.NewCapture(t, l.client, nettest.SnifferOptions{Link: "u0", Ring: 1 << 22})

		crossed := func(secret string) bool {
			return slices.ContainsFunc(wire.Frames(), func(f nettest.Frame) bool {
				return bytes.Contains(f.Data, []byte(secret))
			})
		}

		// If the addresses are open, the packet leaves, and the capture shows it.
		l.guard(t)
		l.takeUp(t)

		for i, vip := range vips {
			open := fmt.Sprintf("secret %d, without the guard", i)
			defer l.goOn(t, vip, open).Close()
			nettest.Until(t, 10*time.Second, "what the guard lets pass is seen",
				func() bool { return crossed(open) })
		}

		// No service has had them for long, and the table has no flow: only callers keep them
		// closed. From here on the addresses are closed. Dropped packets are sent again.
		var known vip.Addresses
		known.Left(nettest.Addrs(vips...), time.Now().Add(-2*vip.Linger))

		var closed []string
		for _, a := range known.Addrs(time.Now(), l.inUse(t)) {
			closed = append(closed, a.String())
		}

		for reason, prepare := range map[string]func(*testing.T){"pod_to_vip": l.takeUp,
			"pod_midstream": func(*testing.T) {}} {
			l.guard(t, closed...)
			prepare(t)
			for i, vip := range vips {
				before := l.dropped(t)[reason]
				c := l.goOn(t, vip, fmt.Sprintf("secret %d, with the guard", i))
				nettest.Until(t, 10*time.Second, "the guard dropped it: "+reason,
					func() bool { return l.dropped(t)[reason] > before })
				// The reset makes the next count belong to the next connection.
				errtest.Must(t, errors.Join(c.SetLinger(0), c.Close()))
			}
		}

		for _, f := range wire.All(t) {
			if bytes.Contains(f.Data, []byte("with the guard")) {
				t.Fatalf("a pod's segment to a service left in clear: %x", f.Data)
			}
		}

		l.ip(t, "link del vpod1")
		l.expectInUse(t, "the pod is gone", nettest.Addrs(vips...), nil)
	})
}

// takeUp lets connections of pods continue that connection tracking does not know, until the next
// call of guard.
func (l *linked) takeUp(t *testing.T) {
	t.Helper()
	l.host.Exec(t, "nft", "flush chain inet kubeveil_guard midstream; flush chain inet "+
		"kubeveil_guard refuse_midstream")
}

// goOn makes the pod connect to port 80 of an address, and send a text once all flows are
// forgotten. The caller closes the connection.
func (l *linked) goOn(t *testing.T, vip, text string) *net.TCPConn {
	t.Helper()
	var c *net.TCPConn
	l.pod.Run(t, func() error {
		conn, err := net.DialTimeout("tcp", net.JoinHostPort(vip, "80"), 5*time.Second)
		if err == nil {
			c = conn.(*net.TCPConn)
		}
		return err
	})
	c.SetDeadline(time.Now().Add(5 * time.Second))

	if got, err := io.ReadAll(c); err != nil || !strings.HasPrefix(string(got), "pod sees ") {
		t.Fatalf("%s answers %q, %v", vip, got, err)
	}

	keys := make(map[string][]flowKey)
	l.eachFlow(t, func(table string, key flowKey, _ flowEntry) {
		keys[table] = append(keys[table], key)
	})
	for table, all := range keys {
		errtest.Must(t, bpfmaps.Delete(l.Table, table, all))
	}

	errtest.Must(t, errtest.Of(c.Write([]byte(text))))
	return c
}
