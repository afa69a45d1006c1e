package engine

import (
	"context"
	"encoding/binary"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// steady is a load of numbered datagrams from one pod to another at a constant rate, with an
// optional TCP stream beside them.
type steady struct {
	interval time.Duration
	stop     chan struct{}
	mu       sync.Mutex
	sent     []time.Duration // by number: the time of sending since began
	came     []time.Duration // by number: the one-way time; 0 means not arrived
	began    time.Time
	carried  atomic.Int64   // bytes of the stream that arrived
	wg       sync.WaitGroup // the sender of datagrams
	stream   sync.WaitGroup // both ends of the stream
	ends     []func()       // what close calls
}

// perSecond is the rate of steady's datagrams.
const perSecond = 1000

// burst is the interval of the writes of a paced stream.
const burst = time.Millisecond

// steadyLoad starts a load from one pod to another. bits is the rate of its stream in bits per
// second; 0 means no stream.
func (w *world) steadyLoad(ctx context.Context, from, to int, bits int) (*steady, error) {
	s := &steady{interval: time.Second / perSecond, stop: make(chan struct{}), began: time.Now()}
	server, clients, stop, err := w.udp(from, to, 1)
	if err != nil {
		return nil, err
	}
	s.ends = append(s.ends, stop)
	if err := server.SetReadBuffer(8 << 20); err != nil {
		s.close()
		return nil, err
	}
	if bits > 0 {
		if err := w.paced(ctx, from, to, bits, s); err != nil {
			s.close()
			return nil, err
		}
	}

	received := make(chan struct{})
	go func() {
		defer close(received)
		s.receive(server)
	}()
	s.ends = append(s.ends, func() { <-received })
	s.wg.Go(func() { s.send(clients[0]) })
	return s, nil
}

func (s *steady) send(c *net.UDPConn) {
	b := make([]byte, 64)
	for next := s.began; ; next = next.Add(s.interval) {
		select {
		case <-s.stop:
			return
		case <-time.After(time.Until(next)):
		}
		now := time.Since(s.began)
		s.mu.Lock()
		number := len(s.sent)
		s.sent = append(s.sent, now)
		s.came = append(s.came, 0)
		s.mu.Unlock()
		binary.BigEndian.PutUint64(b, uint64(number))
		binary.BigEndian.PutUint64(b[8:], uint64(now))
		_, _ = c.Write(b)
	}
}

// count returns the number of sent datagrams.
func (s *steady) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.sent)
}

func (s *steady) receive(c *net.UDPConn) {
	b := make([]byte, 2048)
	for {
		n, err := c.Read(b)
		if err != nil {
			return
		}
		if n != 64 {
			continue
		}
		number := binary.BigEndian.Uint64(b)
		took := time.Since(s.began) - time.Duration(binary.BigEndian.Uint64(b[8:]))
		s.mu.Lock()
		if number < uint64(len(s.came)) {
			s.came[number] = max(took, 1)
		}
		s.mu.Unlock()
	}
}

// longest returns the longest one-way time of the datagrams sent since from. It returns 0 if none
// of them arrived.
func (s *steady) longest(from time.Time) time.Duration {
	d, _ := s.window(from, time.Now())
	return d
}

// window returns the longest one-way time of the datagrams sent between from and to, and the number
// of these datagrams that have not arrived.
func (s *steady) window(from, to time.Time) (longest time.Duration, missing int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	first, _ := slices.BinarySearch(s.sent, from.Sub(s.began))
	end, _ := slices.BinarySearch(s.sent, to.Sub(s.began))
	for _, d := range s.came[first:max(first, end)] {
		longest = max(longest, d)
		if d == 0 {
			missing++
		}
	}
	return longest, missing
}

// lost ends the load and returns the number of datagrams that did not arrive.
func (s *steady) lost() (n int) {
	close(s.stop)
	s.wg.Wait()
	n = s.settle(time.Now())
	s.close()
	return n
}

// settle waits at most 2 s until all datagrams that were sent before a time have arrived. It
// returns the number of missing ones.
func (s *steady) settle(before time.Time) (missing int) {
	for range 200 {
		if _, missing = s.window(s.began, before); missing == 0 {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	return missing
}

func (s *steady) close() {
	for _, end := range s.ends {
		end()
	}
	s.stream.Wait()
}

// paced starts a TCP stream of bits per second from one pod to another, as part of the load s.
func (w *world) paced(ctx context.Context, from, to, bits int, s *steady) error {
	ends, err := w.tcp(ctx, from, to, 1)
	for _, c := range ends {
		s.ends = append(s.ends, func() { c.Close() })
	}
	if err != nil {
		return err
	}

	c, far := ends[0], ends[1]
	s.stream.Go(func() {
		b := make([]byte, bufferSize)
		for {
			n, err := far.Read(b)
			if err != nil {
				return
			}
			s.carried.Add(int64(n))
		}
	})
	s.stream.Go(func() {
		b := make([]byte, bits/8/int(time.Second/burst))
		for next := time.Now(); ; next = next.Add(burst) {
			select {
			case <-s.stop:
				return
			case <-time.After(time.Until(next)):
			}
			if _, err := c.Write(b); err != nil {
				return
			}
		}
	})
	return nil
}

// handshake returns the time of the last handshake of a node's device, as text that is only
// comparable for equality.
func (w *world) handshake(i int) (string, error) {
	lines, err := get(w.socket(i))
	if err != nil {
		return "", err
	}
	return strings.Join(slices.DeleteFunc(lines, func(line string) bool {
		return !strings.HasPrefix(line, "last_handshake_time")
	}), " "), nil
}
