package client

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/netip"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/e2e/bench/api/server"
	"github.com/kubeveil/kubeveil/e2e/bench/service/openloop"
	cpu "github.com/kubeveil/kubeveil/pkg/bench/load"
)

// Load describes the requests that one process sends. It is passed to the process as JSON.
type Load struct {
	// Dir is the folder with the certificates.
	Dir string `json:"dir"`
	// To holds the addresses of the servers. Each connection dials a random one of them.
	To          []netip.AddrPort `json:"to"`
	Connections int              `json:"connections"`
	// Rate is the number of requests per second. The connections send them in turn.
	Rate float64 `json:"rate"`
	// Warm is the time at the beginning that does not count. Duration is the time after it, which
	// counts. Both are in nanoseconds in JSON.
	Warm     time.Duration `json:"warm"`
	Duration time.Duration `json:"duration"`
	// Path is the path of requests to real API servers; "" means the path of the object in the
	// servers in memory.
	Path string `json:"path"`
}

// Outcome is the result of a load. Times are the times of correctly answered requests.
type Outcome struct {
	openloop.Times
	// Done is the number of correct answers to requests that were due in Duration. Failed is the
	// number of all failed requests. Requests is the number of all requests.
	Done     int `json:"done"`
	Failed   int `json:"failed"`
	Requests int `json:"requests"`
	// Error is the first failure, or "" if no request failed.
	Error string `json:"error"`
	// CPU is the CPU time of the whole machine in Duration.
	CPU time.Duration `json:"cpu"`
	// Servers counts the answers, keyed by the name of the server.
	Servers map[string]int `json:"servers"`
}

// Patience bounds the wait for an answer.
const Patience = 5 * time.Second

// clients holds the clients of one process.
type clients struct {
	Load
	each []*http.Client
	urls []string

	mu    sync.Mutex
	times []time.Duration
	out   Outcome
}

// Run connects all clients, sends the requests and returns the outcome.
func (l Load) Run(ctx context.Context) (Outcome, error) {
	c := &clients{Load: l, out: Outcome{Servers: map[string]int{}}}
	config, err := server.Credentials(l.Dir, "client")
	if err != nil {
		return c.out, err
	}
	for range l.Connections {
		c.connect(config)
	}

	for i := range c.each {
		c.ask(ctx, i, time.Now(), false)
	}
	if c.out.Failed > 0 {
		return c.out, fmt.Errorf("connect: %s", c.out.Error)
	}
	err = c.pace(ctx)
	c.out.Times = openloop.SumUp(c.times)
	return c.out, err
}

// connect adds a client that has its own connection.
func (c *clients) connect(config *tls.Config) {
	to := c.To[rand.IntN(len(c.To))]
	path := c.Path
	if path == "" {
		path = server.ObjectPath
	}
	c.urls = append(c.urls, "https://"+to.String()+path)
	c.each = append(c.each, &http.Client{Timeout: Patience, Transport: &http.Transport{
		TLSClientConfig: config.Clone(), ForceAttemptHTTP2: true, DisableCompression: true}})
}

// pace sends each request when it is due, without waiting for earlier answers. It then waits for
// all answers.
func (c *clients) pace(ctx context.Context) error {
	// In an idle process, Go's timers are late by up to a millisecond. nanosleep(2) is not, if the
	// thread's timer slack is a nanosecond.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("set timer slack: %w", err)
	}

	var meter cpu.Meter
	var wg sync.WaitGroup
	begin, counting := time.Now(), false
	for i := 0; ; i++ {
		due := time.Duration(float64(i) / c.Rate * float64(time.Second))
		if due >= c.Warm+c.Duration || ctx.Err() != nil {
			break
		}
		if !counting && due >= c.Warm {
			var err error
			if meter, err = cpu.Start(); err != nil {
				return err
			}
			counting = true
		}
		sleep(time.Until(begin.Add(due)))
		wg.Go(func() { c.ask(ctx, i%len(c.each), begin.Add(due), due >= c.Warm) })
	}

	wg.Wait()
	if err := context.Cause(ctx); err != nil {
		return err
	}
	var err error
	c.out.CPU, _, err = meter.Stop()
	return err
}

// sleep blocks the calling thread for d.
func sleep(d time.Duration) {
	if d > 0 {
		t := unix.NsecToTimespec(int64(d))
		_ = unix.Nanosleep(&t, nil)
	}
}

// ask sends a request on connection i and records the time from due until its answer. The time is
// recorded only if counts is set.
func (c *clients) ask(ctx context.Context, i int, due time.Time, counts bool) {
	from, err := c.get(ctx, i)
	took := time.Since(due)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.out.Requests++
	switch {
	case err != nil:
		c.out.Failed++
		if c.out.Error == "" {
			c.out.Error = err.Error()
		}
	case counts:
		c.out.Done++
		c.out.Servers[from]++
		c.times = append(c.times, took)
	}
}

// errAnswer is the error of a request whose answer is not the expected object.
var errAnswer = errors.New("the answer is not the expected object")

// get sends a request on connection i, checks the answer, and returns the name of the server. The
// name is "" if c.Path is set.
func (c *clients) get(ctx context.Context, i int) (from string, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.urls[i], nil)
	if err != nil {
		return "", err
	}
	resp, err := c.each[i].Do(req)
	if err != nil {
		return "", err
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
	if err = errors.Join(err, resp.Body.Close()); err != nil {
		return "", err
	}
	if c.Path != "" {
		if resp.StatusCode != http.StatusOK || resp.ProtoMajor != 2 {
			return "", fmt.Errorf("%w: %s %s", errAnswer, resp.Proto, resp.Status)
		}
		return "", nil
	}
	if resp.StatusCode != http.StatusOK || resp.ProtoMajor != 2 ||
		!bytes.Equal(body, server.Object) {
		return "", fmt.Errorf("%w: %s %s, %d bytes", errAnswer, resp.Proto, resp.Status, len(body))
	}
	if who := resp.Header.Get(server.HeaderUser); who != server.User {
		return "", fmt.Errorf("the server authenticated the client as %q, want %q", who,
			server.User)
	}
	return resp.Header.Get(server.HeaderServer), nil
}

// Sound returns an error if a request failed or none was answered.
func (o Outcome) Sound() error {
	switch {
	case o.Failed > 0:
		return fmt.Errorf("%d of %d requests failed, the first: %s", o.Failed, o.Failed+o.Done,
			o.Error)
	case o.Done == 0:
		return errors.New("no request was made")
	}
	return nil
}
