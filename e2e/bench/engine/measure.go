package engine

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/poll"
	"github.com/kubeveil/kubeveil/pkg/bench"
)

// bufferSize is the size of a stream's reads and writes in bytes.
const bufferSize = 256 << 10

// warmUp is the time for which a load runs before its measurement begins.
const warmUp = 300 * time.Millisecond

// throughput measures TCP streams from pod a to pod b for d. It returns the sum of their rates in
// Mbit/s, and the CPU time.
func (w *world) throughput(ctx context.Context, streams int,
	d time.Duration) (bench.Sample, error) {
	var got atomic.Int64
	end, err := w.streams(ctx, streams, &got)
	if err != nil {
		return bench.Sample{}, err
	}
	defer end()
	if err := poll.Pause(ctx, warmUp); err != nil {
		return bench.Sample{}, err
	}
	cpu, err := w.cpu()
	if err != nil {
		return bench.Sample{}, err
	}

	began, before := time.Now(), got.Load()
	if err := poll.Pause(ctx, d); err != nil {
		return bench.Sample{}, err
	}

	took, bytes := time.Since(began), got.Load()-before
	after, err := w.cpu()
	if err != nil {
		return bench.Sample{}, err
	}
	if bytes == 0 {
		return bench.Sample{}, fmt.Errorf("%s: no byte arrived", w.side.name)
	}

	return bench.Sample{Value: float64(bytes) * 8 / 1e6 / took.Seconds(),
		CPU: (after - cpu).Seconds() / (float64(bytes) / 1e9)}, nil
}

// streams starts n TCP streams from pod a to pod b, and adds the bytes that arrive to got. end ends
// the streams.
func (w *world) streams(ctx context.Context, n int, got *atomic.Int64) (end func(), err error) {
	var all []net.Conn
	var wg sync.WaitGroup
	closeAll := func() {
		for _, c := range all {
			c.Close()
		}
		wg.Wait()
	}
	all, err = w.tcp(ctx, podA, podB, n)
	if err != nil {
		closeAll()
		return nil, err
	}

	// Send only after all streams are connected, because sending streams would delay connects.
	for i := 0; i < len(all); i += 2 {
		c, s := all[i], all[i+1]
		wg.Go(func() {
			b := make([]byte, bufferSize)
			for {
				if _, err := c.Write(b); err != nil {
					return
				}
			}
		})

		wg.Go(func() {
			b := make([]byte, bufferSize)
			for {
				k, err := s.Read(b)
				if err != nil {
					return
				}
				got.Add(int64(k))
			}
		})
	}

	return closeAll, nil
}

// tcp opens n connections from one pod to another, through the proxies if the side has any. It
// returns both ends of each, the client's first, also after an error.
func (w *world) tcp(ctx context.Context, from, to, n int) (ends []net.Conn, err error) {
	at := podAddr(to) + ":0"
	if w.side.name == tlsPair {
		at = fmt.Sprintf("%s:%d", podAddr(to), proxied)
	}
	var l net.Listener
	if err := w.spaces[to].Do(func() (err error) {
		l, err = net.Listen("tcp4", at)
		return err
	}); err != nil {
		return nil, err
	}
	defer l.Close()

	target := l.Addr().String()
	if w.side.name == tlsPair {
		target = fmt.Sprintf("198.19.1.1:%d", proxied)
	}
	for range n {
		err := w.spaces[from].Do(func() error {
			d := net.Dialer{Timeout: 10 * time.Second}
			c, err := d.DialContext(ctx, "tcp4", target)
			if err == nil {
				ends = append(ends, c)
			}
			return err
		})
		if err != nil {
			return ends, fmt.Errorf("%s: %w", w.side.name, err)
		}
		far, err := l.Accept()
		if err != nil {
			return ends, err
		}
		ends = append(ends, far)
	}
	return ends, nil
}

// latency measures round trips of 64-byte datagrams, one at a time, for d. It returns their median
// and 99th percentile in microseconds. TCP streams run meanwhile if streams is not 0.
func (w *world) latency(ctx context.Context, streams int, d time.Duration) (bench.Sample, error) {
	if streams > 0 {
		var got atomic.Int64
		end, err := w.streams(ctx, streams, &got)
		if err != nil {
			return bench.Sample{}, err
		}
		defer end()
		if err := poll.Pause(ctx, warmUp); err != nil {
			return bench.Sample{}, err
		}
	}

	server, err := w.blocking(podB)
	if err != nil {
		return bench.Sample{}, err
	}
	echoed := make(chan struct{})
	stop := make(chan struct{})
	go func() {
		defer close(echoed)
		echo(server, stop)
	}()
	defer func() {
		close(stop)
		<-echoed
		unix.Close(server)
	}()

	client, err := w.blocking(podA)
	if err != nil {
		return bench.Sample{}, err
	}
	defer unix.Close(client)
	if err := connect(client, server); err != nil {
		return bench.Sample{}, err
	}

	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var times []float64
	b := make([]byte, 64)
	for end := time.Now().Add(d); time.Now().Before(end) && ctx.Err() == nil; {
		number := uint64(len(times))
		binary.BigEndian.PutUint64(b, number)
		began := time.Now()
		if _, err := unix.Write(client, b); err != nil {
			return bench.Sample{}, err
		}
		if !answer(client, b, number) {
			continue
		}
		times = append(times, float64(time.Since(began))/1e3)
	}

	if len(times) < 10 {
		return bench.Sample{}, fmt.Errorf("%s: only %d round trips", w.side.name, len(times))
	}

	slices.Sort(times)
	return bench.Sample{Value: bench.Quantile(times, 0.5), P99: bench.Quantile(times, 0.99)}, nil
}

// lostAfter is the time after which a datagram without an answer counts as lost.
var lostAfter = unix.Timeval{Sec: 1}

// blocking opens a datagram socket in a pod, with blocking reads. Reads through Go's poller would
// add the poller's wake-ups to the latency.
func (w *world) blocking(pod int) (fd int, err error) {
	err = w.spaces[pod].Do(func() (err error) {
		if fd, err = unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0); err != nil {
			return fmt.Errorf("open socket: %w", err)
		}
		a := unix.SockaddrInet4{Addr: netip.MustParseAddr(podAddr(pod)).As4()}
		err = errors.Join(unix.Bind(fd, &a),
			unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &lostAfter))
		if err != nil {
			unix.Close(fd)
			return fmt.Errorf("prepare socket: %w", err)
		}
		return nil
	})
	return fd, err
}

// connect connects the socket fd to the local address of the socket to.
func connect(fd, to int) error {
	a, err := unix.Getsockname(to)
	if err != nil {
		return fmt.Errorf("address of socket: %w", err)
	}
	if err := unix.Connect(fd, a); err != nil {
		return fmt.Errorf("connect socket: %w", err)
	}
	return nil
}

// echo answers datagrams until stop is closed.
func echo(fd int, stop <-chan struct{}) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	b := make([]byte, 2048)
	for {
		select {
		case <-stop:
			return
		default:
		}
		if n, from, err := unix.Recvfrom(fd, b, 0); err == nil {
			_ = unix.Sendto(fd, b[:n], 0, from)
		}
	}
}

// answer waits for the datagram with a number, and reports whether it came within lostAfter.
func answer(fd int, b []byte, number uint64) bool {
	for {
		n, err := unix.Read(fd, b)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return false
		}
		if n >= 8 && binary.BigEndian.Uint64(b) == number {
			return true
		}
	}
}
