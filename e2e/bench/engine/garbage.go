package engine

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"strings"
	"time"

	"github.com/kubeveil/kubeveil/internal/poll"
	"github.com/kubeveil/kubeveil/pkg/bench"
	"github.com/kubeveil/kubeveil/pkg/engine/noise"
)

const (
	// garbageRate is the number of garbage messages per second that a node receives.
	garbageRate = 10_000
	// garbageRounds is the number of first packets that are measured with and without garbage.
	garbageRounds = 10
	// garbageWindow bounds the wait for a first packet. If the first handshake fails, the packet
	// comes after the next attempt, 5 s later.
	garbageWindow = 6 * time.Second
)

// garbage measures how long the first packet to a peer without a session takes while the peer
// receives garbage: random messages of the size of a handshake initiation.
func (s *run) garbage(ctx context.Context) error {
	c, err := s.measureGarbage(ctx, garbageRounds)
	if err == nil {
		s.keep(c)
	}
	return err
}

func (s *run) measureGarbage(ctx context.Context, rounds int) (c bench.Case, err error) {
	w, err := build(ctx, side{name: sides[0].name, file: "g", engine: sides[0].engine}, 1500, s.dir)
	defer w.close()
	if err != nil {
		return c, err
	}
	load, err := w.steadyLoad(ctx, podA, podB, 0)
	if err != nil {
		return c, err
	}
	defer load.lost()

	var beside, quiet []float64
	for n := range rounds {
		free, err := w.firstPacket(ctx, load)
		if err != nil {
			return c, err
		}
		flooded, cancel := context.WithCancel(ctx)
		ended := make(chan error, 1)
		go func() { ended <- w.flood(flooded) }()
		took, err := w.firstPacket(ctx, load)
		cancel()
		if e := <-ended; err == nil {
			err = e
		}
		if err != nil {
			return c, err
		}
		quiet, beside = append(quiet, free), append(beside, took)
		s.Progress("first packet %d/%d: %s beside garbage, %s without", n+1, rounds,
			bench.Millisecond.Format(took), bench.Millisecond.Format(free))
	}
	return bench.NewCase("garbage_first_packet", 1500, bench.Millisecond, beside, quiet,
		"no garbage")
}

// firstPacket removes peer b from node a and adds it again. It returns the time from then until a
// datagram of the load s arrives, in milliseconds.
func (w *world) firstPacket(ctx context.Context, s *steady) (float64, error) {
	peer, err := w.peerOf(nodeA)
	if err != nil {
		return 0, err
	}
	if err := configure(ctx, w.socket(nodeA), peer+"remove=true\n"); err != nil {
		return 0, err
	}
	if err := poll.Pause(ctx, settled); err != nil {
		return 0, err
	}
	from := time.Now()
	if err := configure(ctx, w.socket(nodeA), peer+
		fmt.Sprintf("endpoint=198.18.0.2:%d\nallowed_ip=198.19.2.0/24\n", port)); err != nil {
		return 0, err
	}
	for s.longest(from) == 0 {
		if time.Since(from) > garbageWindow {
			return 0, fmt.Errorf("no datagram arrived within %s", garbageWindow)
		}
		if err := poll.Pause(ctx, time.Millisecond); err != nil {
			return 0, err
		}
	}
	return float64(time.Since(from)) / 1e6, nil
}

// peerOf returns the line "public_key=…" of the peer of a node's device.
func (w *world) peerOf(i int) (string, error) {
	lines, err := get(w.socket(i))
	if err != nil {
		return "", err
	}
	for _, line := range lines {
		if strings.HasPrefix(line, "public_key=") {
			return line + "\n", nil
		}
	}
	return "", fmt.Errorf("node %d has no peer", i)
}

// flood sends garbage from node a to node b until ctx is done.
func (w *world) flood(ctx context.Context) error {
	var c *net.UDPConn
	if err := w.spaces[nodeA].Do(func() (err error) {
		c, err = net.DialUDP("udp4", nil, &net.UDPAddr{IP: net.IPv4(198, 18, 0, 2), Port: port})
		return err
	}); err != nil {
		return err
	}
	defer c.Close()
	r := rand.New(rand.NewPCG(1, 1))
	b := make([]byte, noise.InitiationSize)
	for next := time.Now(); ctx.Err() == nil; next = next.Add(burst) {
		for range garbageRate / int(time.Second/burst) {
			for i := 4; i < len(b); i++ {
				b[i] = byte(r.Uint32())
			}
			b[0] = noise.TypeInitiation
			_, _ = c.Write(b)
		}
		select {
		case <-ctx.Done():
		case <-time.After(time.Until(next)):
		}
	}
	return nil
}
