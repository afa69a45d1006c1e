package bpfmaps

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/service/servicetest"
)

// handsEnv makes this program the hands of a test: a process in the cgroup whose sockets the
// programs are attached to, with backends and clients in it. It carries out orders.
const handsEnv = "KUBEVEIL_TABLE_HANDS"

// backends are addresses of the hands' network namespace. They listen on 8080 (TCP) and 5353 (UDP)
// and answer each line or datagram with their address.
var backends = []string{"198.18.1.1", "198.18.1.2", "198.18.1.3", "fd42:1::1", "fd42:1::2",
	"fd42:1::3"}

// order is a command to the hands, and result its outcome.
type order struct {
	Do, Net, To string
	ID, Count   int
	Mark        uint32 // of the socket that dials by TCP
}

type result struct {
	ID      int    // of the connection
	Peer    string // its remote address as the kernel returns it
	Answer  string // who answered
	Err     string
	Refused bool
	Count   int
}

// hands is the side of the test.
type hands struct {
	t  testing.TB
	ns *nettest.NS
	in *json.Encoder
	*json.Decoder
}

func newHands(t testing.TB, cgroup string) *hands {
	t.Helper()
	ns := nettest.NewNS(t)
	for _, b := range backends {
		a := netip.MustParseAddr(b)
		nettest.AddAddr(t, ns, "lo", netip.PrefixFrom(a, a.BitLen()))
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), handsEnv+"=1")
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	errtest.Must(t, err)
	out, err := cmd.StdoutPipe()
	errtest.Must(t, err)
	nettest.StartIn(t, cgroup, ns, cmd)
	t.Cleanup(func() {
		in.Close() // which ends it
		if err := cmd.Wait(); err != nil {
			t.Errorf("hands: %v", err)
		}
	})
	return &hands{t, ns, json.NewEncoder(in), json.NewDecoder(out)}
}

func (h *hands) do(o order) result {
	h.t.Helper()
	var r result
	if err := errors.Join(h.in.Encode(o), h.Decode(&r)); err != nil {
		h.t.Fatalf("hands: %+v: %v", o, err)
	}
	return r
}

// dial connects and sends one request. It fails the test unless a backend answers.
func (h *hands) dial(network, to string) result {
	h.t.Helper()
	r := h.do(order{Do: "dial", Net: network, To: to})
	if r.Err != "" {
		h.t.Fatalf("dial %s %s: %s", network, to, r.Err)
	}
	return r
}

// ask sends on an open connection and returns the backend that answered.
func (h *hands) ask(id int) string {
	h.t.Helper()
	r := h.do(order{Do: "ask", ID: id})
	if r.Err != "" {
		h.t.Fatalf("connection %d: %s", id, r.Err)
	}
	return r.Answer
}

// handsMain carries out orders until its input ends.
func handsMain() int {
	m := &handsState{}
	for _, b := range backends {
		tcp, udp := net.JoinHostPort(b, "8080"), net.JoinHostPort(b, "5353")
		if err := errors.Join(serveTCP(tcp), serveUDP(udp), usable(udp)); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
	}
	in, out := json.NewDecoder(os.Stdin), json.NewEncoder(os.Stdout)
	for {
		var o order
		if err := in.Decode(&o); errors.Is(err, io.EOF) {
			return 0
		} else if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		r, err := m.do(o)
		if err != nil {
			r.Err, r.Refused = err.Error(), errors.Is(err, unix.ECONNREFUSED)
		}
		if err := out.Encode(r); err != nil {
			return 1
		}
	}
}

// usable waits until a datagram arrives. The kernel adds the local route of an IPv6 address some
// time after the address (addrconf_dad_work, net/ipv6/addrconf.c), and a socket that connected
// earlier has no route permanently.
func usable(at string) error {
	for deadline := time.Now().Add(servicetest.Patience); ; {
		c, err := net.Dial("udp", at)
		if err != nil {
			return err
		}
		_ = c.SetDeadline(time.Now().Add(50 * time.Millisecond))
		_, _ = c.Write([]byte("?"))
		_, err = c.Read(make([]byte, 64))
		c.Close()
		if err == nil || time.Now().After(deadline) {
			return err
		}
	}
}

type handsState struct {
	conns []net.Conn
	stop  chan struct{}
	done  sync.WaitGroup
	load  result
}

func (m *handsState) do(o order) (result, error) {
	switch o.Do {
	case "dial":
		c, err := dial(o)
		if err != nil {
			return result{}, err
		}
		m.conns = append(m.conns, c)
		answer, err := servicetest.Converse(c)
		return result{ID: len(m.conns) - 1, Peer: c.RemoteAddr().String(), Answer: answer}, err

	case "ask":
		answer, err := servicetest.Converse(m.conns[o.ID])
		return result{Answer: answer}, err
	case "also": // by the same socket, to another service
		at, err := net.ResolveUDPAddr("udp", o.To)
		if err != nil {
			return result{}, err
		}
		answer, err := servicetest.Converse(looseConn{m.conns[o.ID].(looseConn).UDPConn, at})
		return result{Answer: answer}, err
	case "peer":
		return peerOf(m.conns[o.ID])
	case "load":
		m.stop, m.load = make(chan struct{}), result{}
		m.done.Go(func() { m.dialAll(o) })
		return result{}, nil
	case "connects":
		return result{}, connects(o.To, o.Count)
	case "sockets":
		return result{}, manySockets(o.To, o.Count)
	case "send":
		return result{}, sendMany(o.To, o.Count)
	case "connect on":
		return connectOn(strings.Fields(o.To))
	case "several":
		return result{}, sendToAll(strings.Fields(o.To), o.Count)
	case "stop":
		close(m.stop)
		m.done.Wait()
		return m.load, nil
	}
	return result{}, fmt.Errorf("order %+v is not known", o)
}

// connects connects a UDP socket to an IPv4 address, again and again.
func connects(to string, count int) error {
	at, err := netip.ParseAddrPort(to)
	if err != nil {
		return err
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	for range count {
		if err := unix.Connect(fd, &unix.SockaddrInet4{Port: int(at.Port()),
			Addr: at.Addr().As4()}); err != nil {
			return err
		}
	}
	return nil
}

// dialAll makes connection after connection and counts those that were answered.
func (m *handsState) dialAll(o order) {
	for {
		select {
		case <-m.stop:
			return
		default:
		}
		c, err := dial(o)
		if err == nil {
			_, err = servicetest.Converse(c)
			c.Close()
		}
		if err != nil {
			m.load.Err = err.Error()
			return
		}
		m.load.Count++
	}
}

// mapped is the network of IPv6 UDP sockets with IPv4-mapped addresses, which package net does not
// make. loose is the network of unconnected UDP sockets.
const mapped, loose = "udp mapped", "udp loose"

// looseConn sends by a socket that is not connected.
type looseConn struct {
	*net.UDPConn
	to *net.UDPAddr
}

func (c looseConn) Write(b []byte) (int, error) { return c.WriteTo(b, c.to) }
func (c looseConn) RemoteAddr() net.Addr        { return c.to }

func dial(o order) (net.Conn, error) {
	to := o.To
	switch o.Net {
	case loose:
		at, err := net.ResolveUDPAddr("udp", to)
		if err != nil {
			return nil, err
		}
		c, err := net.ListenUDP("udp", nil)
		return looseConn{c, at}, err
	case mapped:
	default:
		d := net.Dialer{Timeout: servicetest.Patience,
			Control: func(_, _ string, raw syscall.RawConn) (err error) {
				if o.Mark == 0 {
					return nil
				}
				rawErr := raw.Control(func(fd uintptr) {
					err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_MARK, int(o.Mark))
				})
				return errors.Join(rawErr, err)
			}}
		return d.Dial(o.Net, to)
	}

	at, err := netip.ParseAddrPort(to)
	if err != nil {
		return nil, err
	}
	fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}

	f := os.NewFile(uintptr(fd), to)
	defer f.Close()
	if err := unix.Connect(fd, &unix.SockaddrInet6{Port: int(at.Port()),
		Addr: at.Addr().As16()}); err != nil {
		return nil, err
	}

	return net.FileConn(f)
}

func serveTCP(at string) error {
	l, err := net.Listen("tcp", at)
	if err != nil {
		return err
	}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				for in := bufio.NewScanner(c); in.Scan(); {
					fmt.Fprintln(c, l.Addr().(*net.TCPAddr).IP)
				}
			}()
		}
	}()
	return nil
}

func serveUDP(at string) error {
	c, err := net.ListenPacket("udp", at)
	if err != nil {
		return err
	}
	go answerUDP(c)
	return nil
}

// answerUDP answers each datagram with the address of the socket, until c is closed.
func answerUDP(c net.PacketConn) {
	for buf := make([]byte, 16); ; {
		_, from, err := c.ReadFrom(buf)
		if err != nil {
			return
		}
		fmt.Fprintln(to{c, from}, c.LocalAddr().(*net.UDPAddr).IP)
	}
}

// to writes datagrams to one address.
type to struct {
	c    net.PacketConn
	addr net.Addr
}

func (w to) Write(b []byte) (int, error) { return w.c.WriteTo(b, w.addr) }
