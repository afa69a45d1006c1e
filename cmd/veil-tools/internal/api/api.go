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

	"github.com/kubeveil/kubeveil/internal/toolresult"
)

// holdTimeout is how long a held connection may wait for its first answer. It is long, because the
// machine may just have started a kube-apiserver.
const holdTimeout = 30 * time.Second

// api holds idle TLS connections to the API servers, and each interval sends a request over a new
// connection. It ends after SIGTERM or --for, once the last requests have an answer or failed. It
// prints "open" once the held connections are open, and "closed N" when the N-th of them ends.
func api(ctx context.Context, args []string) (any, error) {
	flags := flagsOf("tls-hold")
	to := flags.To("the API servers' service")
	ca := flags.String("ca", "", "file with the CA of their certificate")
	count := flags.Int("hold", 16, "number of connections to hold")
	interval := flags.Interval(50*time.Millisecond, "two new connections")
	timeout := flags.Timeout(3*time.Second, "the answer over a new connection")
	length := flags.Duration("for", 0, "duration after \"open\"; 0: until SIGTERM")
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

// keep holds count connections, and makes a new connection each interval until the context
// ended is cancelled.
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
			k.asks.Wait() // each ends at its time limit at the latest
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
	length  time.Duration // after "open"; 0 means no limit
	config  *tls.Config
	// wait counts the goroutines of held connections, asks those of new ones.
	wait, asks sync.WaitGroup

	mu sync.Mutex
	r  toolresult.KeptAPI
}

// copy returns the present result.
func (k *apiKeeper) copy() toolresult.KeptAPI {
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

// hold opens a connection to hold. If the connection ends before ctx, it records the time.
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

// ask makes a new connection. If the connection gets no answer, ask records its start time.
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
