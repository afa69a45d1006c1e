package lab

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/cmd/veil-tools/internal/verb"
)

// holdResult is the final output of hold.
type holdResult struct {
	Records uint64  `json:"records"`
	MaxGap  float64 `json:"maxGapMillis"`
	Local   string  `json:"local"`
}

// hold keeps one TCP connection to an echo open until it gets a signal to end. It sends a numbered
// record each interval, each answered before the next. It fails when the connection breaks, stalls
// for longer than --stall, or a record is missing.
func hold(ctx context.Context, args []string) (any, error) {
	flags := flagsOf("tcp-hold")
	to := flags.To("an echo")
	interval := flags.Interval(10*time.Millisecond, "records")
	stall := flags.Duration("stall", 30*time.Second, "longest wait for an answer")
	size := flags.Size(200, "record")
	if err := flags.Parse(args); err != nil {
		return nil, err
	}

	c, err := (&net.Dialer{Timeout: 5 * time.Second}).DialContext(ctx, "tcp", *to)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	fmt.Println("connected")
	r := holdResult{Local: c.LocalAddr().String()}
	tick := time.NewTicker(*interval)
	defer tick.Stop()

	for {
		sent := time.Now()
		_ = c.SetDeadline(sent.Add(*stall))
		if err := exchangeTCP(c, payload(r.Records, *size)); err != nil {
			return r, fmt.Errorf("record %d: %w", r.Records, err)
		}
		r.MaxGap = max(r.MaxGap, verb.Millis(time.Since(sent)))
		r.Records++
		select {
		case <-ctx.Done():
			return r, nil
		case <-tick.C:
		}
	}
}

// sourceResult is the final output of source.
type sourceResult struct {
	Sent   uint64 `json:"sent"`
	Failed uint64 `json:"failed"`
}

// source sends numbered UDP datagrams one way at a steady rate until it gets a signal to end.
func source(ctx context.Context, args []string) (any, error) {
	flags := flagsOf("udp-send")
	to := flags.To("a sink")
	interval := flags.Interval(5*time.Millisecond, "datagrams")
	size := flags.Size(200, "datagram")
	if err := flags.Parse(args); err != nil {
		return nil, err
	}

	c, err := net.Dial("udp", *to)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	fmt.Println("sending")
	var r sourceResult
	tick := time.NewTicker(*interval)
	defer tick.Stop()

	for {
		if _, err := c.Write(payload(r.Sent, *size)); err != nil {
			r.Failed++
		}
		r.Sent++
		select {
		case <-ctx.Done():
			return r, nil
		case <-tick.C:
		}
	}
}

// sinkResult is the final output of sink.
type sinkResult struct {
	Received uint64 `json:"received"`
	Highest  uint64 `json:"highest"`
	// Missing counts sequence numbers below the highest that never came.
	Missing uint64  `json:"missing"`
	MaxGap  float64 `json:"maxGapMillis"`
}

// said is the number of datagrams after which a sink reports its count: a tenth of a second of a
// source.
const said = 20

// sink counts a source's datagrams until it gets a signal to end, and reports the count after each
// twenty.
func sink(ctx context.Context, args []string) (any, error) {
	flags := flagsOf("udp-count")
	listen := flags.Listen(":7001", "")
	if err := flags.Parse(args); err != nil {
		return nil, err
	}
	l, err := net.ListenPacket("udp", *listen)
	if err != nil {
		return nil, err
	}

	go func() {
		<-ctx.Done()
		l.Close()
	}()
	fmt.Println("listening")
	var r sinkResult
	seen := map[uint64]bool{}
	b := make([]byte, 1<<16)

	var last time.Time
	for {
		n, _, err := l.ReadFrom(b)
		if errors.Is(err, net.ErrClosed) {
			break
		}
		if err != nil || n < 8 {
			continue
		}

		now := time.Now()
		if !last.IsZero() {
			r.MaxGap = max(r.MaxGap, verb.Millis(now.Sub(last)))
		}

		last = now
		seq := binary.BigEndian.Uint64(b)
		if !seen[seq] {
			r.Received++
			if r.Received%said == 1 {
				fmt.Printf("received %d\n", r.Received)
			}
		}

		seen[seq] = true
		r.Highest = max(r.Highest, seq)
	}

	if r.Received > 0 {
		r.Missing = r.Highest + 1 - r.Received
	}
	return r, nil
}

// raw sends the frame that it reads from its standard input out of a link: what a
// spoofing pod or a hostile neighbour would send.
func raw(_ context.Context, args []string) (any, error) {
	flags := flagsOf("ethernet-send")
	link := flags.String("link", "eth0", "link to send on")
	if err := flags.Parse(args); err != nil {
		return nil, err
	}
	frame, err := io.ReadAll(os.Stdin)
	if err != nil {
		return nil, err
	}
	return nil, sendFrame(*link, frame)
}

// sendFrame sends one Ethernet frame, its header included, on the named link.
func sendFrame(link string, frame []byte) error {
	i, err := net.InterfaceByName(link)
	if err != nil {
		return err
	}
	// Protocol 0: this socket receives nothing.
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open packet socket: %w", err)
	}
	defer unix.Close(fd)
	if err := unix.Sendto(fd, frame, 0, &unix.SockaddrLinklayer{Ifindex: i.Index}); err != nil {
		return fmt.Errorf("send frame on %s: %w", link, err)
	}
	return nil
}
