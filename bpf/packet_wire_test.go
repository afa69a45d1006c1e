package bpf

import (
	"bufio"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
)

const wirePatience = 10 * time.Second

// clientPort is the last port of a client. Each connection has its own port. The kernel would
// choose ports at random, and a port that was used by another service with the same backend is
// refused (docs/design/0007-service-table.md, "Same client, same port").
var clientPort atomic.Uint32

// reach connects to a service from ns and has a line echoed. It returns the pod that replied and
// the client that the pod saw.
func reach(ns *nettest.NS, network, addr string, port int) (pod, saw string, err error) {
	// These ports are below the kernel's ephemeral ports.
	mine := 10000 + int(clientPort.Add(1)%20000)
	dialer := net.Dialer{Timeout: wirePatience, LocalAddr: &net.TCPAddr{Port: mine}}
	if strings.HasPrefix(network, "udp") {
		dialer.LocalAddr = &net.UDPAddr{Port: mine}
	}

	var conn net.Conn
	err = ns.Do(func() (err error) {
		conn, err = dialer.Dial(network, net.JoinHostPort(addr, strconv.Itoa(port)))
		return err
	})
	if err != nil {
		return "", "", err
	}
	defer conn.Close()

	conn.SetDeadline(time.Now().Add(wirePatience))
	if _, err := fmt.Fprintln(conn, "hello"); err != nil {
		return "", "", err
	}

	r := bufio.NewReader(conn)
	first, err := r.ReadString('\n')
	if err != nil {
		return "", "", err
	}
	echo, err := r.ReadString('\n')
	if err != nil || echo != "hello\n" {
		return "", "", fmt.Errorf("echo is %q: %w", echo, err)
	}

	pod, saw, _ = strings.Cut(strings.TrimSpace(first), " ")
	return pod, saw, nil
}

// network returns the network of net.Dial for an address.
func network(proto, addr string) string {
	if netip.MustParseAddr(addr).Is4() {
		return proto + "4"
	}
	return proto + "6"
}

func TestPacketsOfAClientOutside(t *testing.T) {
	l := newLab(t)
	l.pods(t)
	l.serve(t,
		labService{name: "one", nodePort: 30080, vips: []string{labAddrs[0].vip, labAddrs[1].vip},
			pods: []string{"1"}},
		labService{name: "two", nodePort: 30090,
			vips: []string{labAddrs[0].other, labAddrs[1].other}, pods: []string{"2"}},
	)

	for _, f := range labAddrs {
		for _, c := range []struct {
			situation    string
			addr         string
			port         int
			wantPod, saw string
		}{
			{"node port, backend here", f.node, 30080, "1", f.client},
			{"load balancer, backend here", f.vip, 80, "1", f.client},
			{"node port, backend elsewhere", f.node, 30090, "2", f.self},
			{"load balancer, backend elsewhere", f.other, 80, "2", f.self},
		} {
			for _, proto := range []string{"tcp", "udp"} {
				t.Run(f.name+"/"+proto+"/"+c.situation, func(t *testing.T) {
					port := c.port
					if proto == "udp" {
						port = map[int]int{80: 53, 30080: 30081, 30090: 30091}[port]
					}
					for range 10 {
						pod, saw, err := reach(l.client, network(proto, c.addr), c.addr, port)
						if err != nil || pod != c.wantPod || saw != c.saw {
							t.Fatalf("answered by pod %q that saw %q (%v), want %q and %q", pod,
								saw, err, c.wantPod, c.saw)
						}
					}
				})
			}
		}
	}

	if n := l.refused.Load(); n > 0 {
		t.Errorf("%d packets entered the tunnel from addresses that are not this node's", n)
	}
	if n := counted(t, l.coll, packetTCP); n != 80 {
		t.Errorf("%d connections were counted, want 80", n)
	}
}

// TestPacketsWithAPriorityTag sends frames with a tag of VLAN 0. Such a tag has a priority but
// names no VLAN, so the kernel treats the frame as untagged.
func TestPacketsWithAPriorityTag(t *testing.T) {
	l := newLab(t)
	l.pods(t)
	l.serve(t, labService{name: "one", nodePort: 30080, pods: []string{"1"}})

	for _, f := range labAddrs {
		client, node := at(f.client, 40000), at(f.node, 30081)
		var c *net.UDPConn
		l.client.Run(t, func() (err error) {
			c, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(client))
			return err
		})
		defer c.Close()

		// The first datagram is sent by the kernel, so that the ends resolve each other's link
		// addresses.
		for _, send := range []func() error{
			func() error { _, err := c.WriteToUDPAddrPort([]byte("plain"), node); return err },
			func() error {
				return l.sendTagged(segment(client, node, unix.IPPROTO_UDP, 0, "tagged"))
			},
		} {
			errtest.Must(t, send())
			c.SetReadDeadline(time.Now().Add(wirePatience))
			buf := make([]byte, 256)
			n, from, err := c.ReadFromUDPAddrPort(buf)
			if err != nil || !strings.HasPrefix(string(buf[:n]), "1 "+f.client) ||
				netip.AddrPortFrom(from.Addr().Unmap(), from.Port()) != node {
				t.Errorf("%s: %q from %s: %v", f.name, buf[:n], from, err)
			}
		}
	}
}

// sendTagged sends a frame of the client to node 1 with the addresses of the link and a tag of
// priority 5.
func (l *lab) sendTagged(f []byte) error {
	var node *net.Interface
	err := l.node1.Do(func() (err error) {
		node, err = net.InterfaceByName("u0")
		return err
	})
	if err != nil {
		return err
	}
	return l.client.Do(func() error {
		own, err := net.InterfaceByName("u0")
		if err != nil {
			return err
		}
		return nettest.SendFrames("u0", slices.Concat(node.HardwareAddr, own.HardwareAddr,
			[]byte{0x81, 0, 5 << 5, 0}, f[12:]))
	})
}
