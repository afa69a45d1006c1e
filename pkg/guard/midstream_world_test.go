package guard

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/guard/chains"
)

// leaving is a node with a pod, a tunnel to another node's pod, and the network outside:
//
//	pod p0 ── p0 host u0 ── u0 peer: outside 198.19.0.77, fd42:9::77 and the addresses of balancers
//	              t0 (tunnel) ── t0 far: 198.18.9.9, fd42:1:0:9::9
//
// What leaves by u0 is masqueraded. Far and the peer listen on port 7780.
type leaving struct {
	*node
	pod, far *nettest.NS
	accepted chan *net.TCPConn
}

// ends are the addresses of one family.
type ends struct{ name, service, outside, far string }

var leavingEnds = []ends{
	{"ipv4", balancers[0], "198.19.0.77", "198.18.9.9"},
	{"ipv6", balancers[1], "fd42:9::77", "fd42:1:0:9::9"},
}

const leavingPort = "7780"

// masqueradePods does the same as hostnet's table.
const masqueradePods = "table inet nat { chain c { type nat hook postrouting priority 100; " +
	"oifname u0 meta mark & 0x100000 != 0 masquerade; }; }"

func newLeaving(t *testing.T) leaving {
	t.Helper()
	nettest.NeedProgram(t, "nft")
	nettest.NeedBPF(t)
	n := leaving{node: newNode(t, clsact), far: nettest.NewNS(t),
		accepted: make(chan *net.TCPConn, 1)}
	n.pod = n.addPod(t)
	nettest.Veth(t, nettest.End{NS: n.NS, Name: "t0",
		Addrs: prefixes("198.19.9.1/24", "fd42:99::1/64")},
		nettest.End{NS: n.far, Name: "t0", Addrs: prefixes("198.19.9.2/24", "fd42:99::2/64",
			"198.18.9.9/32", "fd42:1:0:9::9/128")})

	for i, e := range leavingEnds {
		gw := addrs("198.19.9.1", "fd42:99::1")[i]
		nettest.AddRoute(t, n.NS, host(e.far), addrs("198.19.9.2", "fd42:99::2")[i], "t0")
		nettest.AddRoute(t, n.far, host([]string{"198.18.5.5", "fd42:1::5"}[i]), gw, "t0")
		nettest.AddRoute(t, n.far, host(e.outside), gw, "t0")
		nettest.AddRoute(t, n.far, host(e.service), gw, "t0")
		nettest.AddAddr(t, n.peer, "u0", host(e.outside), host(e.service))
	}

	n.Run(t, func() error {
		if err := setGroup("t0", abi.TunnelGroup); err != nil {
			return err
		}
		return runNFT(masqueradePods)
	})
	n.apply(t)

	for _, ns := range []*nettest.NS{n.peer, n.far} {
		n.listen(t, ns)
	}
	return n
}

func host(addr string) netip.Prefix {
	a := netip.MustParseAddr(addr)
	return netip.PrefixFrom(a, a.BitLen())
}

func (n leaving) listen(t *testing.T, ns *nettest.NS) {
	t.Helper()
	ns.Run(t, func() error {
		l, err := net.Listen("tcp", ":"+leavingPort)
		if err != nil {
			return err
		}
		t.Cleanup(func() { l.Close() })
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				n.accepted <- c.(*net.TCPConn)
			}
		}()
		return nil
	})
}

// connect returns both ends of a connection that has carried data. Its source is an address if one
// is given.
func (n leaving) connect(t *testing.T, ns namespace,
	from, to string) (client, server *net.TCPConn) {
	t.Helper()
	d := net.Dialer{Timeout: patience}
	if from != "" {
		d.LocalAddr = &net.TCPAddr{IP: net.ParseIP(from)}
	}
	err := ns.Do(func() error {
		c, err := d.Dial("tcp", net.JoinHostPort(to, leavingPort))
		if err == nil {
			client = c.(*net.TCPConn)
		}
		return err
	})
	if err != nil {
		t.Fatalf("connect to %s: %v; dropped %v", to, err, n.counters(t))
	}
	server = <-n.accepted
	t.Cleanup(func() { client.Close(); server.Close() })
	say(t, client, server, "hello")
	say(t, server, client, "hello yourself")
	return client, server
}

func unacked(t *testing.T, c *net.TCPConn) (segments uint32) {
	t.Helper()
	raw, err := c.SyscallConn()
	if err == nil {
		controlErr := raw.Control(func(fd uintptr) {
			var info *unix.TCPInfo
			if info, err = unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP,
				unix.TCP_INFO); err == nil {
				segments = info.Unacked
			}
		})
		err = errors.Join(err, controlErr)
	}
	errtest.Must(t, err)
	return segments
}

func say(t *testing.T, from, to *net.TCPConn, text string) {
	t.Helper()
	errtest.Must(t, errtest.Of(from.Write([]byte(text))))
	if got, err := read(to, len(text)); err != nil || got != text {
		t.Fatalf("said %q, heard %q, %v", text, got, err)
	}
	// All data must be acknowledged now. Otherwise an acknowledgement could arrive later, when the
	// connection was forgotten or nothing is translated.
	nettest.Until(t, patience, "it is acknowledged", func() bool { return unacked(t, from) == 0 })
}

func read(c *net.TCPConn, n int) (string, error) {
	buf := make([]byte, n)
	if err := c.SetReadDeadline(time.Now().Add(patience)); err != nil {
		return "", err
	}
	m, err := io.ReadFull(c, buf)
	return string(buf[:m]), err
}

// serve sets the addresses to which another program translates the addresses of the service. If to
// is nil, nothing is translated.
func (n leaving) serve(t *testing.T, to func(ends) string) {
	t.Helper()
	rules := "table inet services; delete table inet services; table inet services { chain c { " +
		"type nat hook prerouting priority -100; "
	for i, e := range leavingEnds {
		if to != nil {
			rules += fmt.Sprintf("%s daddr %s dnat %s to %s; ", []string{"ip", "ip6"}[i], e.service,
				[]string{"ip", "ip6"}[i], to(e))
		}
	}
	n.Run(t, func() error { return runNFT(rules + "}; }") })
}

func farOf(e ends) string     { return e.far }
func outsideOf(e ends) string { return e.outside }

// forget makes connection tracking forget everything.
func (n leaving) forget(t *testing.T) {
	t.Helper()
	n.Run(t, nettest.ForgetConnections)
}

// wire captures the packets outside, and returns whether a text was among them.
func (n leaving) wire(t *testing.T) func(text string) bool {
	t.Helper()
	c := nettest.NewCapture(t, n.peer, nettest.SnifferOptions{Link: "u0", Ring: 1 << 22})
	return func(text string) bool {
		return slices.ContainsFunc(c.Frames(), func(f nettest.Frame) bool {
			return bytes.Contains(f.Data, []byte(text))
		})
	}
}

// counts waits until more packets are counted for picking up a connection in its midst.
func (n leaving) counts(t *testing.T, situation string, do func()) {
	t.Helper()
	before := n.counters(t)[chains.Midstream]
	do()
	nettest.Until(t, patience, situation+" is counted",
		func() bool { return n.counters(t)[chains.Midstream] > before })
}

// wantNone fails the test if connection tracking picked up a connection in the middle.
func (n leaving) wantNone(t *testing.T, situation string) {
	t.Helper()
	if c := n.counters(t); c[chains.Midstream] > 0 {
		t.Errorf("%s: dropped %v", situation, c)
	}
}

func write(t *testing.T, c *net.TCPConn, text string) {
	t.Helper()
	errtest.Must(t, errtest.Of(c.Write([]byte(text))))
}
