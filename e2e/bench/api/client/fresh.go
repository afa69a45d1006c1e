package client

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"
)

// KindFresh is the kind of clients that make a new connection for each request.
const KindFresh = "fresh"

const (
	// FreshPeriod is the time between two requests.
	FreshPeriod = 50 * time.Millisecond
	// FreshLimit bounds the wait for an answer. A request without an answer by then has failed.
	FreshLimit = 2 * time.Second
	// freshInRow is the number of consecutive answered requests that shows that no new connection
	// reaches the failed one of two servers. The probability that so many requests all reach the
	// other server by chance is 10^-12.
	freshInRow = 40
)

// attempt is a request over a new connection. over reports whether it has ended, good whether it
// was answered.
type attempt struct {
	began      time.Time
	over, good bool
}

// Fresh sends requests from the mark on, each over a new connection. It prints LineServed once
// freshInRow requests in a row were answered. Its tally has the time at which the last failed
// request began, or no time if all were answered.
func Fresh(ctx context.Context, dir, addr string, out io.Writer) error {
	to, err := netip.ParseAddrPort(addr)
	if err != nil {
		return err
	}
	marks := make(chan os.Signal, 1)
	signal.Notify(marks, syscall.SIGUSR1)
	defer signal.Stop(marks)
	if err := askFresh(ctx, dir, to); err != nil {
		return err
	}
	fmt.Fprintln(out, LineHeld)
	select {
	case <-marks:
	case <-ctx.Done():
		return nil
	}

	all := attempts(ctx, func(ctx context.Context) error { return askFresh(ctx, dir, to) }, func() {
		fmt.Fprintln(out, LineServed)
	})
	t := Tally{Served: map[string][]int64{}}
	for _, a := range all {
		switch {
		case a.good:
			t.Done++
		case a.over:
			t.Failed++
			t.Served[KindFresh] = []int64{a.began.UnixMilli()}
		}
	}
	return json.NewEncoder(out).Encode(t)
}

// askFresh makes a request over a new connection.
func askFresh(ctx context.Context, dir string, to netip.AddrPort) error {
	ctx, cancel := context.WithTimeout(ctx, FreshLimit)
	defer cancel()
	t, err := newTransport(dir, "h2", func() {})
	if err != nil {
		return err
	}
	defer t.CloseIdleConnections()
	return ask(ctx, t, to)
}

// attempts sends a request every FreshPeriod until ctx is done, and returns all of them. It calls
// settled once, when freshInRow requests in a row were answered. A request that ctx ended counts as
// unfinished.
func attempts(ctx context.Context, ask asker, settled func()) []attempt {
	var wg sync.WaitGroup
	var mu sync.Mutex
	var all []*attempt
	said := false
	tick := time.NewTicker(FreshPeriod)
	defer tick.Stop()

	for ctx.Err() == nil {
		a := &attempt{began: time.Now()}
		mu.Lock()
		all = append(all, a)
		mu.Unlock()
		wg.Go(func() {
			err := ask(ctx)
			mu.Lock()
			defer mu.Unlock()
			a.over, a.good = err == nil || ctx.Err() == nil, err == nil
			if !said && goodInRow(all) >= freshInRow {
				said = true
				settled()
			}
		})
		select {
		case <-ctx.Done():
		case <-tick.C:
		}
	}

	wg.Wait()
	out := make([]attempt, len(all))
	for i, a := range all {
		out[i] = *a
	}
	return out
}

// goodInRow returns the number of answered attempts since the last failed one. Attempts after the
// first unfinished one do not count.
func goodInRow(all []*attempt) (n int) {
	for _, a := range all {
		switch {
		case !a.over:
			return n
		case a.good:
			n++
		default:
			n = 0
		}
	}
	return n
}
