package lab

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/cmd/veil-tools/internal/verb"
	"github.com/kubeveil/kubeveil/internal/toolresult"
)

// payload returns size bytes that begin with seq and are otherwise filled with the canary.
func payload(seq uint64, size int) []byte {
	canary := os.Getenv(verb.CanaryEnv)
	if canary == "" {
		canary = "no-canary-was-set"
	}
	if least := 8 + len(canary); size < least {
		size = least
	}
	b := make([]byte, size)
	for i := 8; i < size; i += copy(b[i:], canary) {
	}
	binary.BigEndian.PutUint64(b, seq)
	return b
}

// echo serves an echo server over TCP and UDP until it gets a signal to end.
func echo(ctx context.Context, args []string) (any, error) {
	flags := flagsOf("echo-serve")
	listen := flags.Listen(":7000", " for both TCP and UDP")
	if err := flags.Parse(args); err != nil {
		return nil, err
	}

	l, u, err := listenBoth(*listen)
	if err != nil {
		return nil, err
	}
	defer l.Close()
	defer u.Close()
	go echoConnections(l)
	go answerDatagrams(u, func(b []byte, _ net.Addr) []byte { return b })
	fmt.Println("listening")
	<-ctx.Done()
	return nil, nil
}

// listenBoth listens at an address with TCP and UDP.
func listenBoth(at string) (net.Listener, net.PacketConn, error) {
	l, err := net.Listen("tcp", at)
	if err != nil {
		return nil, nil, err
	}
	u, err := net.ListenPacket("udp", at)
	if err != nil {
		l.Close()
		return nil, nil, err
	}
	return l, u, nil
}

// echoConnections echoes the data of connections until l is closed.
func echoConnections(l net.Listener) {
	serveConnections(l, func(c net.Conn) { _, _ = io.Copy(c, c) })
}

// serveConnections calls serve with each connection of l and then closes the connection. It returns
// when l is closed.
func serveConnections(l net.Listener, serve func(net.Conn)) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer c.Close()
			serve(c)
		}()
	}
}

// answerDatagrams answers each datagram with the result of answer until u is closed.
func answerDatagrams(u net.PacketConn, answer func(b []byte, from net.Addr) []byte) {
	b := make([]byte, 1<<16)
	for {
		n, from, err := u.ReadFrom(b)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err == nil {
			_, _ = u.WriteTo(answer(b[:n], from), from)
		}
	}
}

// send sends messages to an echo server, one after the other. It fails if a message does not come
// back unchanged. Over UDP it repeats a message after --again.
func send(ctx context.Context, args []string) (any, error) {
	flags := flagsOf("echo-send")
	proto := flags.Proto()
	to := flags.To("an echo server")
	count := flags.Count(10, "number of messages")
	size := flags.Size(200, "message")
	timeout := flags.Timeout(5*time.Second, "all messages")
	again := flags.Duration("again", 300*time.Millisecond,
		"pause before a UDP message is sent again")
	canary := flags.Canary("fills the messages")
	if err := flags.Parse(args); err != nil {
		return nil, err
	}
	if err := os.Setenv(verb.CanaryEnv, *canary); err != nil {
		return nil, err
	}

	ctx, cancel := context.WithTimeout(ctx, *timeout)
	defer cancel()
	start := time.Now()
	var d net.Dialer
	c, err := d.DialContext(ctx, *proto, *to)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	deadline, _ := ctx.Deadline()

	r := toolresult.Sent{Local: c.LocalAddr().String()}
	for i := range *count {
		msg := payload(uint64(i), *size)
		err := exchange(c, *proto, msg, deadline, *again)
		r.Sent++
		if err != nil {
			return r, fmt.Errorf("message %d of %d: %w", i+1, *count, err)
		}
		r.Received++
		r.Bytes += int64(len(msg))
	}

	r.Millis = float64(time.Since(start).Microseconds()) / 1000
	return r, nil
}

// exchange sends msg to an echo server and waits until it comes back.
func exchange(c net.Conn, proto string, msg []byte, deadline time.Time,
	again time.Duration) error {
	if strings.HasPrefix(proto, "udp") {
		return exchangeUDP(c, msg, deadline, again)
	}
	_ = c.SetDeadline(deadline)
	return exchangeTCP(c, msg)
}

func exchangeTCP(c net.Conn, msg []byte) error {
	// Write and read at the same time, because a large message does not fit into the buffers.
	wrote := make(chan error, 1)
	go func() {
		_, err := c.Write(msg)
		wrote <- err
	}()
	got := make([]byte, len(msg))
	if _, err := io.ReadFull(c, got); err != nil {
		return err
	}
	if err := <-wrote; err != nil {
		return err
	}
	if !bytes.Equal(got, msg) {
		return errors.New("the message came back changed")
	}
	return nil
}

func exchangeUDP(c net.Conn, msg []byte, deadline time.Time, again time.Duration) error {
	got := make([]byte, len(msg)+1)
	var last, write error
	tries, began := 0, time.Now()
	for ; time.Now().Before(deadline); tries++ {
		// An error here is an ICMP error for an earlier message. The message is repeated anyway.
		if _, err := c.Write(msg); err != nil {
			write = err
		}

		_ = c.SetReadDeadline(time.Now().Add(again))
		for {
			n, err := c.Read(got)
			if err != nil {
				last = err
				var timeout net.Error
				if !errors.As(err, &timeout) || !timeout.Timeout() {
					time.Sleep(10 * time.Millisecond)
				}
				break
			}
			if bytes.Equal(got[:n], msg) {
				return nil
			}
		}
	}

	return fmt.Errorf("no answer to %d tries in %v: %w", tries,
		time.Since(began).Round(time.Millisecond), errors.Join(last, write))
}

// knock sends a line with the canary to any TCP server and waits for an answer. Most servers,
// including TLS servers, answer a line that they do not understand.
func knock(ctx context.Context, args []string) (any, error) {
	flags := flagsOf("tcp-knock")
	to := flags.To("a TCP server")
	canary := flags.Canary("is sent")
	timeout := flags.Timeout(5*time.Second, "connecting and the answer")
	if err := flags.Parse(args); err != nil {
		return nil, err
	}

	ctx, cancel := context.WithTimeout(ctx, *timeout)
	defer cancel()
	start := time.Now()
	var d net.Dialer
	c, err := d.DialContext(ctx, "tcp", *to)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	deadline, _ := ctx.Deadline()

	_ = c.SetDeadline(deadline)
	line := fmt.Sprintf("GET /%s HTTP/1.0\r\nHost: canary\r\n\r\n", *canary)
	if _, err := io.WriteString(c, line); err != nil {
		return nil, err
	}
	answer := make([]byte, 1)
	if _, err := io.ReadFull(c, answer); err != nil {
		return nil, fmt.Errorf("no answer: %w", err)
	}

	return toolresult.Sent{Sent: 1, Received: 1, Bytes: int64(len(line)),
		Millis: verb.Millis(time.Since(start)), Local: c.LocalAddr().String()}, nil
}

// dialerFrom returns a dialer that uses that local port, even if an ended connection still occupies
// it. With port 0 the kernel chooses the port.
func dialerFrom(proto string, port int, timeout time.Duration) *net.Dialer {
	d := &net.Dialer{Timeout: timeout}
	switch {
	case port == 0:
	case proto == "udp":
		d.LocalAddr = &net.UDPAddr{Port: port}
	default:
		d.LocalAddr = &net.TCPAddr{Port: port}
		d.Control = func(_, _ string, c syscall.RawConn) (err error) {
			if failed := c.Control(func(fd uintptr) {
				err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)
			}); failed != nil {
				return failed
			}
			return err
		}
	}
	return d
}
