package api

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"sync"
	"time"
)

// holdTimeout is how long a connection that is to be held may take to get its first answer. It is
// opened before the test begins, on a machine that may just have started a kube-apiserver.
const holdTimeout = 30 * time.Second

// apiResult is the final output of api. Times are milliseconds since 1970.
type apiResult struct {
	// Opened counts the held connections. Closed holds the times at which some of them ended.
	Opened int     `json:"opened"`
	Closed []int64 `json:"closed"`
	// Asked counts the connections that were made besides. Failed holds the times at which those
	// without an answer began.
	Asked  int     `json:"asked"`
	Failed []int64 `json:"failed"`
}

// api holds idle TLS connections to the API servers. Each interval it opens a new one and sends a
// request over it, until it gets SIGTERM or its time is over, and the last new ones have an
// answer or failed. It prints "open" once the first are open, and "closed N" when the N-th of them
// has ended.
func api(ctx context.Context, args []string) (any, error) {
	flags := flagsOf("tls-hold")
	to := flags.To("the API servers' service")
	ca := flags.String("ca", "", "file with the authority of their certificate")
	count := flags.Int("hold", 16, "connections that are held")
	interval := flags.Interval(50*time.Millisecond, "two new ones")
	timeout := flags.Timeout(3*time.Second, "the answer over a new one")
	length := flags.Duration("for", 0, "time after \"open\" until it ends by itself; with 0 it does not")
	if err := flags.Parse(args); err != nil {
		return nil, err
	}
	pem, err := os.ReadFile(*ca)
	if err != nil {
		return nil, err
	}

	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, errors.New(*ca + " holds no certificate")
	}

	k := apiKeeper{to: *to, timeout: *timeout, length: *length,
		config: &tls.Config{RootCAs: pool, ServerName: "kubernetes.default.svc",
			MinVersion: tls.VersionTLS12}}
	return k.keep(ctx, *count, *interval)
}

// keep holds count connections, and makes new ones until ended is done.
func (k *apiKeeper) keep(ended context.Context, count int, interval time.Duration) (any, error) {
	defer k.wait.Wait()
	ctx, cancel := context.WithCancel(context.WithoutCancel(ended))
	defer cancel()

	for range count {
		if err := k.hold(ctx); err != nil {
			return nil, err
		}
	}

	fmt.Println("open")
	if k.length > 0 {
		var stop context.CancelFunc
		ended, stop = context.WithTimeout(ended, k.length)
		defer stop()
	}
	tick := time.NewTicker(interval)
	defer tick.Stop()

	for {
		select {
		case <-ended.Done():
			k.asks.Wait() // one that hangs is of no use, and its time limit may be longer than the rest
			return k.copy(), nil
		case <-tick.C:
			k.asks.Go(func() { k.ask(ctx) })
		}
	}
}

// apiKeeper makes the connections.
type apiKeeper struct {
	to      string
	timeout time.Duration
	length  time.Duration // after which it ends, if it is not 0
	config  *tls.Config
	// wait is for those that are held, asks for the new ones.
	wait, asks sync.WaitGroup

	mu sync.Mutex
	r  apiResult
}

// copy returns the present result.
func (k *apiKeeper) copy() apiResult {
	k.mu.Lock()
	defer k.mu.Unlock()
	r := k.r
	r.Closed, r.Failed = slices.Clone(r.Closed), slices.Clone(r.Failed)
	return r
}

// dial connects and waits for the first byte of an answer to a request that needs no credentials.
func (k *apiKeeper) dial(ctx context.Context, timeout time.Duration) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	c, err := (&tls.Dialer{Config: k.config}).DialContext(ctx, "tcp", k.to)
	if err != nil {
		return nil, err
	}
	_ = c.SetDeadline(time.Now().Add(timeout))
	if _, err = c.Write(
		[]byte("GET /version HTTP/1.1\r\nHost: kubernetes.default.svc\r\n\r\n")); err == nil {
		_, err = c.Read(make([]byte, 1))
	}
	if err != nil {
		c.Close()
		return nil, err
	}
	_ = c.SetDeadline(time.Time{})
	return c, nil
}

// hold opens a connection that stays, and records when it ends by itself.
func (k *apiKeeper) hold(ctx context.Context) error {
	c, err := k.dial(ctx, holdTimeout)
	if err != nil {
		return err
	}
	k.mu.Lock()
	k.r.Opened++
	k.mu.Unlock()
	stop := context.AfterFunc(ctx, func() { c.Close() })
	k.wait.Go(func() {
		defer stop()
		defer c.Close()
		for b := make([]byte, 4096); err == nil; {
			_, err = c.Read(b)
		}
		if ctx.Err() != nil {
			return
		}
		k.mu.Lock()
		defer k.mu.Unlock()
		k.r.Closed = append(k.r.Closed, time.Now().UnixMilli())
		fmt.Println("closed", len(k.r.Closed))
	})
	return nil
}

// ask makes a connection. If it gets no answer, ask records when it began.
func (k *apiKeeper) ask(ctx context.Context) {
	began := time.Now()
	c, err := k.dial(ctx, k.timeout)
	k.mu.Lock()
	defer k.mu.Unlock()
	k.r.Asked++
	if err != nil {
		k.r.Failed = append(k.r.Failed, began.UnixMilli())
		fmt.Fprintln(os.Stderr, "new connection:", err)
		return
	}
	c.Close()
}
