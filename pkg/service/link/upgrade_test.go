package link

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/internal/nl"
	"github.com/kubeveil/kubeveil/pkg/service/link/hook"
	"github.com/kubeveil/kubeveil/pkg/service/planner"
	"github.com/kubeveil/kubeveil/pkg/service/servicetest"
)

// TestFlowsOutliveTheirTable restarts and upgrades the daemon while a client outside has flows
// through NodePorts of the host. One flow goes to the host's pod, which sees the client. One goes
// to a pod behind the tunnel, which sees the host, with a port that no other flow has. All flows
// continue, and no backend sees another port.
func TestFlowsOutliveTheirTable(t *testing.T) {
	for name, next := range map[string]struct {
		flows uint32
		other bool // whether the programs have other instructions
		did   string
	}{
		"same programs":         {flows: 1024},
		"other programs":        {flows: 1024, other: true, did: "replaced "},
		"larger table of flows": {flows: 4096, did: "replaced "},
	} {
		t.Run(name, func(t *testing.T) {
			bothHooks(t, func(t *testing.T, withTCX bool) {
				l := newLinked(t, withTCX)
				l.addFar(t)
				l.serveHereAndFar(t)
				l.attach(t)
				flows := l.talk(t)
				had := l.knownFlows(t)

				// For each family and protocol there are two entries if the source stays, and four
				// if it changes.
				if want := 2 * 2 * (2 + 4); len(had) != want {
					t.Fatalf("the flows have %d entries, want %d: %v", len(had), want, had)
				}

				errtest.Must(t, l.Table.Close())

				expectGoOn(t, "while nobody has the table open", flows)
				l.reopen(t, next.flows, next.other)
				// The programs before the guard are replaced first, and answers come meanwhile.
				l.host.Run(t, l.translateAtGuard)
				expectGoOn(t, "while programs are replaced", flows)

				var want []string
				for _, attached := range attachedLinks {
					if next.did != "" {
						want = append(want, strings.Replace(attached, "attached ", next.did, 1))
					}
				}

				if diff := cmp.Diff(want, l.attach(t)); diff != "" {
					t.Error(diff)
				}

				now := l.knownFlows(t)
				for key, to := range had {
					if now[key] != to {
						t.Errorf("entry %s was %s and is %q", key, to, now[key])
					}
				}

				expectGoOn(t, "in the new table", flows)
				if l.talk(t); len(l.knownFlows(t)) != 2*len(had) {
					t.Errorf("%d entries with as many new flows, want %d", len(l.knownFlows(t)),
						2*len(had))
				}
			})
		})
	}
}

// TestUpgradeThatIsKilled upgrades to another table of flows. The upgrade ends after each place
// that it changes, and is begun again.
func TestUpgradeThatIsKilled(t *testing.T) {
	bothHooks(t, func(t *testing.T, withTCX bool) {
		l := newLinked(t, withTCX)
		l.addFar(t)
		l.serveHereAndFar(t)
		places := len(l.attach(t))
		flows := l.talk(t)
		for done := range places + 1 {
			entries := uint32(2048 + 1024*done)
			errtest.Must(t, l.Table.Close())
			l.reopen(t, entries, false)
			flows = append(flows[:8:8], l.talk(t)...) // by the old programs, after the first copy
			l.host.Run(t, func() error { return l.replaceSome(done) })
			errtest.Must(t, l.Table.Close())
			expectGoOn(t, fmt.Sprintf("after %d places", done), flows)
			l.reopen(t, entries, false)
			if changed := l.attach(t); len(changed) != places-done {
				t.Errorf("after %d of %d places AttachLinks changed %v", done, places, changed)
			}
			expectGoOn(t, fmt.Sprintf("after %d places and the rest", done), flows)
		}
		l.talk(t)
	})
}

// replaceSome runs AttachLinks until this many places have their programs.
func (l *linked) replaceSome(places int) error {
	if err := errors.Join(l.CopyNewer(), l.translateAtGuard()); err != nil {
		return err
	}

	h, links, err := nl.OpenLinks()
	if err != nil {
		return err
	}
	defer h.Close()

	hk := hook.New(l.tcx)
	for _, link := range links {
		master, err := hook.MasterOf(h, link)
		if err != nil {
			return err
		}
		want := hook.Plan(link, master)
		for _, dir := range []direction{egress, ingress} {
			if places == 0 {
				return nil
			}
			p := hook.Point{Index: link.Attrs().Index, Dir: dir}
			did, err := l.attachPoint(h, hk, p, want[dir])
			if err != nil {
				return err
			}
			if did != "" {
				places--
			}
		}
	}

	return nil
}

// addFar adds another node with a pod, in one namespace, behind veil0 of the host:
//
//	host veil0 ═══ veil0 198.18.2.5 far
//	                     fd42:1:0:2::5
func (l *linked) addFar(t *testing.T) {
	t.Helper()
	l.far = nettest.NewNS(t)
	nettest.TUN(t, l.far, "veil0")
	nettest.AddAddr(t, l.far, "veil0", nettest.Prefixes("198.18.2.5/32", "fd42:1:0:2::5/128")...)

	for _, p := range nettest.Prefixes("0.0.0.0/0", "::/0") {
		nettest.AddRoute(t, l.far, p, netip.Addr{}, "veil0")
	}

	for _, p := range nettest.Prefixes("198.18.2.0/24", "fd42:1:0:2::/64") {
		nettest.AddRoute(t, l.host, p, netip.Addr{}, "veil0")
	}

	a := nettest.OpenTUN(t, l.host, "veil0", unix.IFF_TUN)
	b := nettest.OpenTUN(t, l.far, "veil0", unix.IFF_TUN)
	done := make(chan struct{}, 2)
	carry := func(from, to *os.File) {
		for buf := make([]byte, 1<<16); ; {
			n, err := from.Read(buf)
			if err != nil {
				done <- struct{}{}
				return
			}
			_, _ = to.Write(buf[:n]) // errors are ignored, because a network may lose packets too
		}
	}

	go carry(a, b)
	go carry(b, a)
	t.Cleanup(func() {
		a.Close()
		b.Close()
		<-done
		<-done
	})
}

// serveHereAndFar puts the pod behind ports 30080 (TCP) and 30053 (UDP) of the host, and far behind
// 31080 and 31053.
func (l *linked) serveHereAndFar(t *testing.T) {
	t.Helper()
	p, err := planner.New("node-1", servicetest.Limits)
	errtest.Must(t, err)

	p.SetNodeAddrs(nettest.Addrs("198.19.0.1", "fd42:9::1"))
	for name, s := range map[string]struct {
		node     string
		web, dns uint16
		pod      []string
	}{
		"here": {"node-1", 30080, 30053, []string{"198.18.1.5", "fd42:1::5"}},
		"far":  {"node-2", 31080, 31053, []string{"198.18.2.5", "fd42:1:0:2::5"}},
	} {
		svc, endpoints := servicetest.Named(name), servicetest.SliceOf(name, s.pod...)
		svc.Ports[0].NodePort, svc.Ports[1].NodePort = s.web, s.dns
		servicetest.Place(&endpoints, s.node)
		p.PutService(svc)
		p.PutSlice(endpoints)
	}

	errtest.Must(t, l.Apply(p.Plan()))

	tellSource(t, l.pod)
	tellSource(t, l.far)
}

// tellSource answers each line or datagram at 8080 (TCP) and 5353 (UDP) of a namespace with its
// source. It returns a large datagram behind that.
func tellSource(t *testing.T, ns *nettest.NS) {
	t.Helper()
	var tcp net.Listener
	var udp net.PacketConn
	ns.Run(t, func() (err error) {
		if tcp, err = net.Listen("tcp", ":8080"); err != nil {
			return err
		}
		t.Cleanup(func() { tcp.Close() })
		if udp, err = net.ListenPacket("udp", ":5353"); err != nil {
			return err
		}
		t.Cleanup(func() { udp.Close() })
		return nil
	})

	// The client's last packets may be lost with the tunnel, so the test closes these connections
	// too.
	var mu sync.Mutex
	var conns []net.Conn
	t.Cleanup(func() {
		mu.Lock()
		defer mu.Unlock()
		for _, c := range conns {
			c.Close()
		}
	})

	go func() {
		for {
			c, err := tcp.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			conns = append(conns, c)
			mu.Unlock()
			go func() {
				defer c.Close()
				for in := bufio.NewScanner(c); in.Scan(); {
					fmt.Fprintln(c, c.RemoteAddr())
				}
			}()
		}
	}()

	go func() {
		for buf := make([]byte, 1<<16); ; {
			n, from, err := udp.ReadFrom(buf)
			if err != nil {
				return
			}
			answer := []byte(from.String() + "\n")
			if n > 16 {
				answer = append(answer, buf[:n]...)
			}
			_, _ = udp.WriteTo(answer, from)
		}
	}()
}

// flow is an open connection of the client.
type flow struct {
	net.Conn
	source string // as the backend sees it
}

// talk opens a flow to each NodePort.
func (l *linked) talk(t *testing.T) []flow {
	t.Helper()
	var flows []flow
	for _, to := range []struct{ network, at, source string }{
		{"tcp", "198.19.0.1:30080", "198.19.0.9:"}, {"tcp", "[fd42:9::1]:30080", "[fd42:9::9]:"},
		{"udp", "198.19.0.1:30053", "198.19.0.9:"}, {"udp", "[fd42:9::1]:30053", "[fd42:9::9]:"},
		{"tcp", "198.19.0.1:31080", "198.18.1.1:"}, {"tcp", "[fd42:9::1]:31080", "[fd42:1::1]:"},
		{"udp", "198.19.0.1:31053", "198.18.1.1:"}, {"udp", "[fd42:9::1]:31053", "[fd42:1::1]:"},
	} {
		f := flow{}
		l.client.Run(t, func() (err error) {
			f.Conn, err = net.DialTimeout(to.network, to.at, servicetest.Patience)
			return err
		})
		t.Cleanup(func() { f.Close() })
		var err error
		f.source, err = servicetest.Converse(f.Conn)
		if err != nil || !strings.HasPrefix(f.source, to.source) {
			t.Fatalf("the backend of %s %s sees %q, %v, want %s; the guard dropped %v", to.network,
				to.at, f.source, err, to.source, l.dropped(t))
		}
		flows = append(flows, f)
	}
	return flows
}

func expectGoOn(t *testing.T, when string, flows []flow) {
	t.Helper()
	for _, f := range flows {
		if source, err := servicetest.Converse(f.Conn); err != nil || source != f.source {
			t.Fatalf("%s: the backend of %s %s saw %s and sees %q, %v", when,
				f.RemoteAddr().Network(), f.RemoteAddr(), f.source, source, err)
		}
	}
}

// knownFlows returns the address and the port of each entry of the flow tables, by its key.
func (l *linked) knownFlows(t *testing.T) map[string]string {
	t.Helper()
	all := make(map[string]string)
	l.eachFlow(t, func(_ string, key flowKey, f flowEntry) {
		all[fmt.Sprintf("%x", key)] = fmt.Sprintf("%x", f[:18])
	})
	return all
}

// reopen replaces a closed table by one with this many flows, and with other programs if other is
// set.
func (l *linked) reopen(t *testing.T, flows uint32, other bool) {
	t.Helper()
	c := l.config()
	c.Memory = memoryOf(flows)
	if other {
		c.TunnelPort = 7
	}
	l.openWith(t, c, l.tcx)
	l.setSelf(t)
}
