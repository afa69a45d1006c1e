package load

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/kubeveil/kubeveil/internal/netns"
	"github.com/kubeveil/kubeveil/pkg/bench"
)

// Port is the port on which iperf3 listens.
const Port = 5201

// Server is an iperf3 server process in a namespace.
type Server struct {
	cmd  *exec.Cmd
	ns   string
	done chan struct{}
}

// Serve starts a Server in the namespace at path ns and waits until it listens. The server runs
// until Close or until ctx is done.
func Serve(ctx context.Context, ns string) (*Server, error) {
	cmd := command(ctx, ns, "-s")
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start iperf3: %w", err)
	}
	s := &Server{cmd: cmd, ns: ns, done: make(chan struct{})}
	go func() {
		_ = cmd.Wait()
		close(s.done)
	}()
	if err := s.wait(ctx, 5*time.Second); err != nil {
		s.Close()
		return nil, fmt.Errorf("iperf3 in %s: %w", ns, err)
	}
	return s, nil
}

// wait waits until the port is in use. It does not connect, because iperf3 serves one connection at
// a time.
func (s *Server) wait(ctx context.Context, patience time.Duration) error {
	deadline := time.After(patience)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()

	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-s.done:
			return errors.New("ended at once: is its port in use")
		case <-deadline:
			return errors.New("does not listen")
		case <-tick.C:
		}

		var inUse bool
		err := netns.Do(s.ns, func() error {
			l, err := net.Listen("tcp", fmt.Sprintf(":%d", Port))
			if err == nil {
				return l.Close()
			}
			inUse = errors.Is(err, syscall.EADDRINUSE)
			return nil
		})
		if err != nil || inUse {
			return err
		}
	}
}

// Close ends the server.
func (s *Server) Close() {
	_ = s.cmd.Process.Kill()
	<-s.done
}

func command(ctx context.Context, ns string, args ...string) *exec.Cmd {
	// nsenter executes iperf3 in its own process, so killing that process ends iperf3.
	return exec.CommandContext(ctx, "nsenter",
		append([]string{"--net=" + ns, "iperf3"}, args...)...)
}

// Flow is traffic from a namespace to a server.
type Flow struct {
	// From is the path of the client's namespace.
	From string
	// To is the server's address.
	To netip.Addr
	// Duration is the time of sending, in whole seconds.
	Duration time.Duration
	// Run, if not nil, runs the iperf3 client in another place than From. It returns the output
	// even with an error.
	Run func(ctx context.Context, args ...string) ([]byte, error)
	// Busy, if not nil, returns the CPU time that counts. Nil means the CPU time of this machine.
	Busy func(ctx context.Context) (time.Duration, error)
}

// TCP sends over parallel streams and returns the received Mbit/s and the CPU time.
func (f Flow) TCP(ctx context.Context, streams int) (bench.Sample, error) {
	// -O leaves out the first second, because slow start is not a property of the path.
	r, err := f.run(ctx, "-P", strconv.Itoa(streams), "-O", "1")
	if err != nil {
		return bench.Sample{}, err
	}
	return bench.Sample{Value: r.mbps, CPU: r.cpuPerGB()}, nil
}

// Datagrams is the result of a run of UDP.
type Datagrams struct {
	// Mbps is the received payload, 10^6 bits per second.
	Mbps float64
	// Loss is the share of sent datagrams that did not arrive, 0 to 1.
	Loss float64
	// CPU is in core-seconds per 10^9 received bytes.
	CPU float64
}

// UDP sends datagrams at a rate in Mbit/s. payload is the payload of a datagram in bytes.
func (f Flow) UDP(ctx context.Context, mbps float64, payload int) (Datagrams, error) {
	r, err := f.run(ctx, "-u", "-b", strconv.FormatFloat(mbps*1e6, 'f', 0, 64), "-l",
		strconv.Itoa(payload))
	if err != nil {
		return Datagrams{}, err
	}
	return Datagrams{r.mbps, r.loss, r.cpuPerGB()}, nil
}

// figures are the results of one run. bytes includes the bytes of a warm-up, because cpu covers the
// warm-up too.
type figures struct {
	mbps, loss, bytes float64
	cpu               time.Duration
}

func (f figures) cpuPerGB() float64 { return f.cpu.Seconds() / (f.bytes / 1e9) }

func (f Flow) run(ctx context.Context, args ...string) (figures, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, f.Duration+20*time.Second,
		errors.New("iperf3 did not end in time"))
	defer cancel()
	args = append([]string{"-c", f.To.String(), "-J", "-t", strconv.Itoa(int(f.Duration.Seconds())),
		"--connect-timeout", "3000"}, args...)
	for {
		before, err := f.busy(ctx)
		if err != nil {
			return figures{}, err
		}

		out, err := f.iperf(ctx, args)
		if e := context.Cause(ctx); e != nil {
			return figures{}, e
		}
		after, e := f.busy(ctx)
		if e != nil {
			return figures{}, e
		}

		r, e := parse(out)
		if errors.Is(e, errBusy) {
			// The server still serves the previous client.
			time.Sleep(50 * time.Millisecond)
			continue
		}

		if e = errors.Join(err, e); e != nil {
			return figures{}, fmt.Errorf("iperf3 to %s: %w", f.To, e)
		}

		r.cpu = after - before
		return r, nil
	}
}

func (f Flow) busy(ctx context.Context) (time.Duration, error) {
	if f.Busy != nil {
		return f.Busy(ctx)
	}
	return Busy()
}

func (f Flow) iperf(ctx context.Context, args []string) ([]byte, error) {
	if f.Run != nil {
		return f.Run(ctx, args...)
	}
	cmd := command(ctx, f.From, args...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		err = fmt.Errorf("%w: %s", err, strings.TrimSpace(stderr.String()))
	}
	return out, err
}

var errBusy = errors.New("the server is busy")

// parse returns the figures in the output of iperf3 -J. It returns errBusy if the server was busy.
func parse(out []byte) (figures, error) {
	type sum struct {
		Bytes   float64 `json:"bytes"`
		Rate    float64 `json:"bits_per_second"`
		Packets float64 `json:"packets"`
	}
	var r struct {
		Error     string `json:"error"`
		Intervals []struct {
			Sum sum `json:"sum"`
		} `json:"intervals"`
		End struct {
			Sent     sum `json:"sum_sent"`
			Received sum `json:"sum_received"`
		} `json:"end"`
	}
	if err := json.Unmarshal(out, &r); err != nil {
		return figures{}, fmt.Errorf("read its answer: %w", err)
	}

	switch {
	case strings.Contains(r.Error, "busy"):
		return figures{}, errBusy
	case r.Error != "":
		return figures{}, errors.New(r.Error)
	case r.End.Received.Bytes <= 0 || r.End.Sent.Bytes <= 0:
		return figures{}, errors.New("nothing arrived")
	}

	moved := 0.0
	for _, i := range r.Intervals {
		moved += i.Sum.Bytes
	}

	loss := 0.0
	if r.End.Sent.Packets > 0 {
		loss = max(0, 1-r.End.Received.Bytes/r.End.Sent.Bytes)
		moved = r.End.Received.Bytes
	}

	return figures{mbps: r.End.Received.Rate / 1e6, loss: loss,
		bytes: max(moved, r.End.Received.Bytes)}, nil
}
