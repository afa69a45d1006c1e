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
	"github.com/kubeveil/kubeveil/internal/toolresult"
)

// hold keeps one TCP connection to an echo server open until it gets a signal to end. Each interval
// it sends a numbered record and waits for it to come back. It fails if the connection breaks or
// stalls for longer than --stall, or if a record comes back changed.
func hold(ctx context.Context, args []string) (any, error) {
	flags := flagsOf("tcp-hold")
	to := flags.To("an echo server")
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
	r := toolresult.Held{Local: c.LocalAddr().String()}
	tick := time.NewTicker(*interval)
	defer tick.Stop()

	for {
		sent := time.Now()
		_ = c.SetDeadline(sent.Add(*stall))
		if err := exchangeTCP(c, payload(r.Records, *size)); err != nil {
			return r, fmt.Errorf("record %d: %w", r.Records, err)
		}
		r.MaxGapMillis = max(r.MaxGapMillis, verb.Millis(time.Since(sent)))
		r.Records++
		select {
		case <-ctx.Done():
			return r, nil
		case <-tick.C:
		}
	}
}

// sourceResult is the final output of udp-send.
type sourceResult struct {
	Sent   uint64 `json:"sent"`
	Failed uint64 `json:"failed"`
}

// source sends numbered UDP datagrams at a steady rate until it gets a signal to end. It expects no
// answers.
func source(ctx context.Context, args []string) (any, error) {
	flags := flagsOf("udp-send")
	to := flags.To("a server of udp-count")
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

// said is the number of datagrams between two reports of sink. A source sends them in a tenth of a
// second.
const said = 20

// sink counts the datagrams of udp-send until it gets a signal to end. It prints the count after
// every 20 datagrams.
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
	var r toolresult.Drained
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
			r.MaxGapMillis = max(r.MaxGapMillis, verb.Millis(now.Sub(last)))
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

// raw reads an Ethernet frame from standard input and sends it on a link, as a spoofing pod or a
// hostile neighbour would.
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
