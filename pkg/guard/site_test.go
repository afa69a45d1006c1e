package guard

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/internal/nfnl"
	"github.com/kubeveil/kubeveil/internal/nl"
	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/cluster"
	"github.com/kubeveil/kubeveil/pkg/guard/chains"
)

// siteEnds are the pod, the site's node, which is an address of the peer, and this node.
var siteEnds = []struct{ pod, site, self string }{
	{"198.18.5.5", "198.19.8.2", "198.19.0.1"}, {"fd42:1::5", "fd42:8::2", "fd42:9::1"},
}

// newSite returns a node whose peer is the node of site b, and a function that puts openings in
// force. The tunnel of the lab is a link with neighbour discovery, so the site's addresses are not
// addresses of the link.
func newSite(t *testing.T) (tunnelled, func(openings ...cluster.Opening)) {
	t.Helper()
	n := newTunnelled(t)
	s := lab()
	s.SelfAddrs = addrs("198.19.0.1", "fd42:9::1")
	s.Sites = []Site{{Name: "b", Ranges: prefixes("198.19.8.0/24", "fd42:8::/64")},
		{Name: "c", Ranges: prefixes("198.19.9.0/24", "fd42:99::/64")}}
	for i, f := range siteEnds {
		site := netip.MustParseAddr(f.site)
		s.NodeAddrs = append(s.NodeAddrs, site)
		link, gate := podAndNode[i].node, []string{"198.18.5.1", "fd42:1::1"}[i]
		nettest.AddAddr(t, n.peer, "lo", host(f.site))
		nettest.AddRoute(t, n.NS, host(f.site), netip.MustParseAddr(link), "u0")
		nettest.AddRoute(t, n.peer, host(f.pod), netip.MustParseAddr(f.self), "u0")
		nettest.AddRoute(t, n.pod, host(f.site), netip.MustParseAddr(gate), "p0")
	}

	n.Run(t, func() error {
		_, err := n.g.Apply(s)
		return err
	})

	return n, func(openings ...cluster.Opening) {
		t.Helper()
		slices.SortFunc(openings, cluster.Opening.Compare)
		s.Openings = openings
		n.Run(t, func() error {
			_, err := n.g.Update(s)
			return err
		})
		got := n.read(t)
		want := Plan(s, got.Links)
		s.Keep(want.Table, got.Table)
		if ops := Diff(got, want); len(ops) != 0 {
			t.Errorf("the kernel differs from the plan: %v", ops)
		}
	}
}

// exported returns the openings of the pod for a site: a TCP port and a UDP port in both families.
func exported(site string) (all []cluster.Opening) {
	for _, f := range siteEnds {
		a := netip.MustParseAddr(f.pod)
		all = append(all,
			cluster.Opening{Site: site, Protocol: unix.IPPROTO_TCP,
				Endpoint: netip.AddrPortFrom(a, 7780)},
			cluster.Opening{Site: site, Protocol: unix.IPPROTO_UDP,
				Endpoint: netip.AddrPortFrom(a, udpPort)})
	}
	return all
}

// closedTo sends again until a packet is counted as not exported.
func (n tunnelled) closedTo(t *testing.T, situation string, send func() error) {
	t.Helper()
	before := n.counters(t)[chains.SiteNotExported]
	nettest.Until(t, patience, situation+" is counted", func() bool {
		err := send()
		if timeout := net.Error(nil); errors.As(err, &timeout) && timeout.Timeout() {
			err = nil
		}
		errtest.Must(t, err)
		return n.counters(t)[chains.SiteNotExported] > before
	})
}

// dial connects in a namespace from an address, and closes the connection.
func dial(ns namespace, from, to string, port int) error {
	return dialFrom(ns, from, 0, to, port)
}

// dialFrom is dial from a port. 0 means any port.
func dialFrom(ns namespace, from string, fromPort int, to string, port int) error {
	return ns.Do(func() error {
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from), Port: fromPort},
			Timeout: patience / 10}
		c, err := d.Dial("tcp", net.JoinHostPort(to, fmt.Sprint(port)))
		if err != nil {
			return err
		}
		return c.Close()
	})
}

// listen accepts connections in a namespace until the test ends.
func listen(t *testing.T, ns *nettest.NS, port int) {
	t.Helper()
	ns.Run(t, func() error {
		l, err := net.Listen("tcp", fmt.Sprintf("[::]:%d", port))
		if err != nil {
			return err
		}
		t.Cleanup(func() { l.Close() })
		go func() {
			for c, err := l.Accept(); err == nil; c, err = l.Accept() {
				t.Cleanup(func() { c.Close() })
			}
		}()
		return nil
	})
}

// A site reaches the address, protocol and port of exported endpoints, and nothing else.
func TestSiteReachesExportsOnly(t *testing.T) {
	n, set := newSite(t)
	set(exported("b")...)
	listen(t, n.pod, 7780)
	listen(t, n.pod, 7781)
	listen(t, n.NS, 7780)
	listen(t, n.peer, 7790)
	before := n.counters(t)[chains.SiteNotExported]
	for _, f := range siteEnds {
		if err := dial(n.peer, f.site, f.pod, 7780); err != nil {
			t.Errorf("the site reaches no exported port of %s: %v", f.pod, err)
		}
		if got := source(t, n.pod, f.pod, func() error {
			return udp(n.peer, f.site, f.pod, 0)
		}); got != f.site {
			t.Errorf("the pod sees %s, want %s", got, f.site)
		}
		if err := dial(n.pod, f.pod, f.site, 7790); err != nil {
			t.Errorf("the pod does not reach the site: %v", err)
		}
		errtest.Must(t, n.refusedInside(f.site))
		n.probed(t, f.site, f.self)
		n.echoed(t, f.site, f.self)
	}
	if now := n.counters(t)[chains.SiteNotExported]; now != before {
		t.Errorf("%d packets were dropped", now-before)
	}

	for _, f := range siteEnds {
		n.closedTo(t, "another port", func() error { return dial(n.peer, f.site, f.pod, 7781) })
		n.closedTo(t, "an address of the node", func() error { return dial(n.peer, f.site, f.self, 7780) })
		n.closedTo(t, "a datagram to the node", func() error { return udp(n.peer, f.site, f.self, 0) })
	}

	set(exported("c")...)
	for _, f := range siteEnds {
		n.closedTo(t, "an export to another site", func() error { return dial(n.peer, f.site, f.pod, 7780) })
		n.closedTo(t, "a datagram", func() error { return udp(n.peer, f.site, f.pod, 0) })
	}
	set()
	for _, f := range siteEnds {
		n.closedTo(t, "without exports", func() error { return dial(n.peer, f.site, f.pod, 7780) })
	}
}

// refusedInside sends from the pod to a closed UDP port of the site, until the ICMP error returns.
func (n tunnelled) refusedInside(node string) error {
	return n.pod.Do(func() error {
		c, err := net.Dial("udp", net.JoinHostPort(node, "7791"))
		if err != nil {
			return err
		}
		defer c.Close()
		if _, err := c.Write([]byte("kubeveil")); err != nil {
			return err
		}
		if err := c.SetReadDeadline(time.Now().Add(patience)); err != nil {
			return err
		}
		if _, err := c.Read(make([]byte, 8)); !errors.Is(err, unix.ECONNREFUSED) {
			return fmt.Errorf("no ICMP error returned from %s: %w", node, err)
		}
		return nil
	})
}

// probed sends a datagram between the ports of probes, from the site's node to this node.
func (n tunnelled) probed(t *testing.T, from, to string) {
	t.Helper()
	at := func(ns *nettest.NS, addr string) (c *net.UDPConn) {
		ns.Run(t, func() (err error) {
			c, err = net.ListenUDP("udp", &net.UDPAddr{IP: net.ParseIP(addr), Port: abi.ProbePort})
			return err
		})
		return c
	}
	here, there := at(n.NS, to), at(n.peer, from)
	defer here.Close()
	defer there.Close()
	_, err := there.WriteTo([]byte("kubeveil"), here.LocalAddr())
	errtest.Must(t, err)
	errtest.Must(t, here.SetReadDeadline(time.Now().Add(patience)))
	if _, _, err := here.ReadFrom(make([]byte, 8)); err != nil {
		t.Errorf("a probe from %s: %v", from, err)
	}
}

// echoed sends an ICMP echo from the site's node to this node, and waits for the answer.
func (n tunnelled) echoed(t *testing.T, from, to string) {
	t.Helper()
	network, echo, answer := "ip4:icmp", []byte{8, 0, 0xf7, 0xfd, 0, 1, 0, 1}, byte(0)
	if net.ParseIP(to).To4() == nil { // The kernel computes the checksum of ICMPv6.
		network, echo, answer = "ip6:ipv6-icmp", []byte{128, 0, 0, 0, 0, 1, 0, 1}, 129
	}

	n.peer.Run(t, func() error {
		c, err := net.ListenPacket(network, from)
		if err != nil {
			return err
		}
		defer c.Close()
		if _, err := c.WriteTo(echo, &net.IPAddr{IP: net.ParseIP(to)}); err != nil {
			return err
		}
		if err := c.SetReadDeadline(time.Now().Add(patience)); err != nil {
			return err
		}
		for b := make([]byte, 64); ; {
			size, by, err := c.ReadFrom(b)
			if err != nil {
				return fmt.Errorf("no answer from %s: %w", to, err)
			}
			if size >= 8 && b[0] == answer && by.String() == to {
				return nil
			}
		}
	})
}

// A connection continues after its export was removed, until veild deletes its entry. Then the
// pod's next segment is answered with a reset, and does not revive it. A new one does not begin.
func TestUnexportEndsForgottenConnections(t *testing.T) {
	n, set := newSite(t)
	for _, f := range siteEnds {
		set(exported("b")...)
		there, here := n.connected(t, f.site, f.pod)
		set()
		n.closedTo(t, "a new connection", func() error { return dial(n.peer, f.site, f.pod, 7780) })
		_, err := there.Write([]byte("kubeveil"))
		errtest.Must(t, err)
		errtest.Must(t, here.SetReadDeadline(time.Now().Add(patience)))
		if _, err := here.Read(make([]byte, 8)); err != nil {
			t.Errorf("the known connection to %s: %v", f.pod, err)
		}

		before := n.counters(t)[chains.SiteNotExported]
		n.Run(t, nettest.ForgetConnections)
		if _, err = here.Write([]byte("kubeveil")); err == nil {
			_, err = here.Read(make([]byte, 8))
		}
		if !errors.Is(err, unix.ECONNRESET) {
			t.Errorf("the connection of the pod %s: %v", f.pod, err)
		}
		if n.counters(t)[chains.SiteNotExported] == before {
			t.Error("the segment of the pod is not counted")
		}
		n.closedTo(t, "a segment of the site", func() error {
			_, err := there.Write([]byte("kubeveil"))
			return err
		})
	}
}

// Unanswered datagrams continue after their export was removed, as when veild was restarted
// and has not read the exports yet. Without their entry in conntrack they do not.
func TestUnansweredDatagramsAreAKnownConnection(t *testing.T) {
	n, set := newSite(t)
	for _, f := range siteEnds {
		set(exported("b")...)
		var here *net.UDPConn
		n.pod.Run(t, func() (err error) {
			here, err = net.ListenUDP("udp", &net.UDPAddr{IP: net.ParseIP(f.pod), Port: udpPort})
			return err
		})
		defer here.Close()
		var there net.Conn
		n.peer.Run(t, func() (err error) {
			d := net.Dialer{LocalAddr: &net.UDPAddr{IP: net.ParseIP(f.site)}}
			there, err = d.Dial("udp", here.LocalAddr().String())
			return err
		})
		defer there.Close()
		send := func() error { return errtest.Of(there.Write([]byte("kubeveil"))) }
		receive := func() {
			t.Helper()
			errtest.Must(t, send())
			errtest.Must(t, here.SetReadDeadline(time.Now().Add(patience)))
			errtest.Must(t, errtest.Of(here.Read(make([]byte, 8))))
		}

		receive()
		set()
		n.closedTo(t, "a datagram from another port", func() error {
			return udp(n.peer, f.site, f.pod, 0)
		})
		receive()
		n.Run(t, nettest.ForgetConnections)
		n.closedTo(t, "a datagram without an entry", send)
	}
}

// connected returns both ends of a TCP connection from the site to port 7780 of the pod.
func (n tunnelled) connected(t *testing.T, site, pod string) (there, here net.Conn) {
	t.Helper()
	var l net.Listener
	n.pod.Run(t, func() (err error) {
		l, err = net.Listen("tcp", net.JoinHostPort(pod, "7780"))
		return err
	})
	defer l.Close()
	n.peer.Run(t, func() (err error) {
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(site)}, Timeout: patience}
		there, err = d.Dial("tcp", l.Addr().String())
		return err
	})
	here, err := l.Accept()
	errtest.Must(t, err)
	t.Cleanup(func() { errtest.Must(t, errors.Join(there.Close(), here.Close())) })
	return there, here
}

// A connection that conntrack knows does not carry another one from the same port, after its export
// was removed.
func TestSYNOfAKnownConnectionIsJudged(t *testing.T) {
	const port = 40001
	n, set := newSite(t)
	listen(t, n.pod, 7780)
	for _, f := range siteEnds {
		from, to := netip.MustParseAddr(f.site), netip.MustParseAddr(f.pod)
		n.Run(t, func() error {
			c, err := nfnl.Open()
			if err != nil {
				return err
			}
			defer c.Close()
			return nl.TrackOpened(c, []nl.Opened{{Client: netip.AddrPortFrom(from, port),
				Server: netip.AddrPortFrom(to, 7780)}})
		})
		set()
		n.closedTo(t, "a SYN", func() error { return dialFrom(n.peer, f.site, port, f.pod, 7780) })
		set(exported("b")...)
		if err := dialFrom(n.peer, f.site, port, f.pod, 7780); err != nil {
			t.Errorf("the site opens no connection to an exported port of %s: %v", f.pod, err)
		}
	}
}

// Conntrack has no entry for echoes of a site's node.
func TestEchoesOfSitesAreNotTracked(t *testing.T) {
	n, _ := newSite(t)
	for _, f := range siteEnds {
		n.echoed(t, f.site, f.self)
	}
	var tracked []nl.Connection
	n.Run(t, func() error {
		c, err := nfnl.Open()
		if err != nil {
			return err
		}
		defer c.Close()
		return nl.EachConnection(c, func() { tracked = nil }, func(c nl.Connection) {
			if slices.ContainsFunc(siteEnds, func(f struct{ pod, site, self string }) bool {
				return c.Client == netip.MustParseAddr(f.site)
			}) {
				tracked = append(tracked, c)
			}
		})
	})
	if len(tracked) > 0 {
		t.Errorf("tracked: %+v", tracked)
	}
}
