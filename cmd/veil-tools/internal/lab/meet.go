package lab

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/kubeveil/kubeveil/cmd/veil-tools/internal/verb"
)

// metResult is the result of echo-meet for one echo server. To is protocol/host:port.
type metResult struct {
	To     string  `json:"to"`
	Tries  int     `json:"tries"`
	Millis float64 `json:"millis"`
	Error  string  `json:"error,omitempty"`
}

// meet exchanges messages with many echo servers at the same time. It repeats the exchange with a
// server until all messages come back or the time is over, because proxies and nodes need time to
// configure services and peers. Its output lists all servers, its error those that did not answer.
func meet(ctx context.Context, args []string) (any, error) {
	flags := flagsOf("echo-meet")
	timeout := flags.Timeout(30*time.Second, "all exchanges")
	count := flags.Count(3, "messages to each server")
	size := flags.Size(400, "message")
	canary := flags.Canary("fills the messages")
	if err := flags.ParseWith("PROTOCOL/HOST:PORT...", args); err != nil {
		return nil, err
	}
	if err := os.Setenv(verb.CanaryEnv, *canary); err != nil {
		return nil, err
	}

	ctx, cancel := context.WithTimeout(ctx, *timeout)
	defer cancel()
	results := make([]metResult, flags.NArg())

	done := make(chan struct{})
	for i, to := range flags.Args() {
		go func() {
			results[i] = meetOne(ctx, to, *count, *size)
			done <- struct{}{}
		}()
	}

	for range results {
		<-done
	}

	var errs []error
	for _, r := range results {
		if r.Error != "" {
			errs = append(errs, fmt.Errorf("%s: %s", r.To, r.Error))
		}
	}

	return results, errors.Join(errs...)
}

// meetProtocols are the protocols of a target, as in net.Dial.
var meetProtocols = []string{"tcp", "udp", "tcp4", "tcp6", "udp4", "udp6"}

// meetOne repeats the exchange with the server to, protocol/host:port, until it succeeds or ctx
// ends.
func meetOne(ctx context.Context, to string, count, size int) metResult {
	r := metResult{To: to}
	start := time.Now()
	proto, addr, ok := strings.Cut(to, "/")
	if !ok || !slices.Contains(meetProtocols, proto) {
		r.Error = "want tcp/host:port or udp/host:port; tcp4, tcp6, udp4 and udp6 select a family"
		return r
	}

	for {
		r.Tries++
		err := meetOnce(ctx, proto, addr, count, size)
		if err == nil {
			r.Error, r.Millis = "", verb.Millis(time.Since(start))
			return r
		}
		if r.Error == "" || ctx.Err() == nil {
			// Keep the earlier error: that of an attempt that the end of ctx interrupts is not the
			// cause.
			r.Error = err.Error()
		}
		select {
		case <-ctx.Done():
			r.Millis = verb.Millis(time.Since(start))
			return r
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// onceLimit is the time limit of one attempt.
const onceLimit = 5 * time.Second

func meetOnce(ctx context.Context, proto, addr string, count, size int) error {
	ctx, cancel := context.WithTimeout(ctx, onceLimit)
	defer cancel()
	c, err := (&net.Dialer{}).DialContext(ctx, proto, addr)
	if err != nil {
		return err
	}
	defer c.Close()
	deadline, _ := ctx.Deadline()
	for i := range count {
		if err := exchange(c, proto, payload(uint64(i), size), deadline,
			500*time.Millisecond); err != nil {
			return fmt.Errorf("message %d of %d: %w", i+1, count, err)
		}
	}
	return nil
}
