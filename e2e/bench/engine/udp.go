package engine

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/poll"
	"github.com/kubeveil/kubeveil/pkg/bench"
	"github.com/kubeveil/kubeveil/pkg/bench/load"
)

const (
	// udpPayload is the payload of each datagram in bytes.
	udpPayload = 1300
	// udpMTU is the only MTU at which the highest rate of UDP is measured.
	udpMTU = 1500
	// udpLoss is the largest share of datagrams that may be lost.
	udpLoss = 0.005
	// udpQueue is the queue length of the TUN of each node in packets.
	udpQueue = 10_000
	// udpSegments is the number of datagrams that a segmenting sender sends in one system call
	// (UDP_SEGMENT), as QUIC stacks do.
	udpSegments = 32
	// udpBuffer is the size of the receiving socket's buffer in bytes.
	udpBuffer = 32 << 20
	// drained is the time after which every datagram on the path has arrived.
	drained = 200 * time.Millisecond
)

// highestUDP measures the highest rate of datagrams from pod a to pod b at which at most udpLoss is
// lost. It sends for d at each rate, with segments datagrams per system call. The search begins at
// *hint, in Mbit/s, and stores the rate that it found there.
func (w *world) highestUDP(ctx context.Context, d time.Duration, segments int,
	hint *float64) (out bench.Sample, err error) {
	if w.side.engine != "" {
		queues, err := w.setQueues(ctx, [2]int{udpQueue, udpQueue})
		if err != nil {
			return bench.Sample{}, err
		}
		defer func() { _, err = w.setQueues(ctx, queues) }()
	}

	s := load.Search{Floor: 20, Ceiling: 20_000, Hint: *hint, Loss: udpLoss, Step: 1.03}
	got, err := s.Highest(ctx, func(ctx context.Context, mbps float64) (load.Datagrams, error) {
		return w.datagrams(ctx, mbps, d, segments)
	})
	if err != nil {
		return bench.Sample{}, fmt.Errorf("%s: highest rate of UDP: %w", w.side.name, err)
	}
	*hint = got.Mbps
	return bench.Sample{Value: got.Mbps, CPU: got.CPU}, nil
}

// setQueues sets the queue lengths of both nodes' TUNs in packets, and returns the former lengths.
func (w *world) setQueues(ctx context.Context, length [2]int) (former [2]int, err error) {
	for i := range former {
		err := w.spaces[i].Do(func() error {
			l, err := netlink.LinkByName("veil0")
			if err != nil {
				return err
			}
			former[i] = l.Attrs().TxQLen
			return netlink.LinkSetTxQLen(l, length[i])
		})
		if err != nil {
			return former, fmt.Errorf("set queue of TUN: %w", err)
		}
	}
	return former, ctx.Err()
}

// datagrams sends mbps Mbit/s of payload from pod a to pod b for d and returns what arrived.
func (w *world) datagrams(ctx context.Context, mbps float64, d time.Duration,
	segments int) (load.Datagrams, error) {
	server, clients, stop, err := w.udp(podA, podB, 1)
	if err != nil {
		return load.Datagrams{}, err
	}
	defer stop()
	var sent int
	var took time.Duration
	cold := func() error { return nil }
	came, cpu, err := w.arrived(ctx, server, cold, func() (err error) {
		sent, took, err = pace(ctx, clients[0], mbps, d, segments)
		return err
	})
	if err != nil {
		return load.Datagrams{}, err
	}

	bytes := float64(came * udpPayload)
	if bytes == 0 {
		return load.Datagrams{Loss: 1}, nil
	}
	return load.Datagrams{Mbps: bytes * 8 / 1e6 / took.Seconds(),
		Loss: 1 - float64(came)/float64(sent), CPU: cpu.Seconds() / (bytes / 1e9)}, nil
}

// udp opens a socket in pod to, and sockets of n clients in pod from that are connected to it. stop
// closes all of them.
func (w *world) udp(from, to, n int) (server *net.UDPConn, clients []*net.UDPConn, stop func(),
	err error) {
	err = w.spaces[to].Do(func() (err error) {
		server, err = net.ListenUDP("udp4", &net.UDPAddr{IP: net.ParseIP(podAddr(to))})
		return err
	})
	if err != nil {
		return nil, nil, nil, err
	}
	stop = func() {
		for _, c := range append(clients, server) {
			c.Close()
		}
	}

	err = w.spaces[from].Do(func() error {
		for range n {
			c, err := net.DialUDP("udp4", nil, server.LocalAddr().(*net.UDPAddr))
			if err != nil {
				return err
			}
			clients = append(clients, c)
		}
		return nil
	})
	if err != nil {
		stop()
	}
	return server, clients, stop, err
}

// arrived calls warm, then send, and returns the number of datagrams that arrive at server from
// then until all are drained, and the CPU time of both nodes. It closes server.
func (w *world) arrived(ctx context.Context, server *net.UDPConn,
	warm, send func() error) (n int64, cpu time.Duration, err error) {
	if err := prepare(server); err != nil {
		return 0, 0, err
	}
	var came atomic.Int64
	received := make(chan struct{})
	go func() {
		defer close(received)
		count(server, &came)
	}()

	if err := warm(); err != nil {
		return 0, 0, err
	}
	before, err := w.cpu()
	if err != nil {
		return 0, 0, err
	}
	n = came.Load()
	if err := send(); err != nil {
		return 0, 0, err
	}
	if err := poll.Pause(ctx, drained); err != nil {
		return 0, 0, err
	}
	after, err := w.cpu()
	server.Close()
	<-received
	return came.Load() - n, after - before, err
}

// prepare sets the buffer of a receiving socket to udpBuffer, and enables UDP_GRO, so that one read
// returns several datagrams.
func prepare(c *net.UDPConn) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var set error
	err = raw.Control(func(fd uintptr) {
		set = errors.Join(
			unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, udpBuffer),
			unix.SetsockoptInt(int(fd), unix.IPPROTO_UDP, unix.UDP_GRO, 1))
	})
	return errors.Join(err, set)
}

// count adds the datagrams that arrive to came until the socket is closed.
func count(c *net.UDPConn, came *atomic.Int64) {
	b := make([]byte, 1<<16)
	for {
		n, err := c.Read(b)
		if err != nil {
			return
		}
		came.Add(int64(n / udpPayload))
	}
}

// pace sends mbps Mbit/s of payload for d, with segments datagrams per system call. It returns the
// number of sent datagrams and the time that passed.
func pace(ctx context.Context, c *net.UDPConn, mbps float64, d time.Duration,
	segments int) (sent int, took time.Duration, err error) {
	payload := make([]byte, segments*udpPayload)
	var control []byte
	if segments > 1 {
		control = make([]byte, unix.CmsgSpace(2))
		h := (*unix.Cmsghdr)(unsafe.Pointer(&control[0]))
		h.Level, h.Type = unix.IPPROTO_UDP, unix.UDP_SEGMENT
		h.SetLen(unix.CmsgLen(2))
		binary.NativeEndian.PutUint16(control[unix.CmsgLen(0):], udpPayload)
	}

	perSecond := mbps * 1e6 / 8 / udpPayload
	began := time.Now()
	for took < d && ctx.Err() == nil {
		if sent > int(took.Seconds()*perSecond) {
			time.Sleep(50 * time.Microsecond)
		} else if _, _, err := c.WriteMsgUDP(payload, control, nil); err != nil {
			return 0, 0, fmt.Errorf("send datagram %d: %w", sent+1, err)
		} else {
			sent += segments
		}
		took = time.Since(began)
	}
	return sent, took, ctx.Err()
}
