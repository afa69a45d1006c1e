package api

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/kubeveil/kubeveil/e2e/bench/api/client"
	"github.com/kubeveil/kubeveil/e2e/lab"
	"github.com/kubeveil/kubeveil/pkg/bench"
)

const (
	// caseHang is until when new connections reached a server whose handlers hang, caseHangClosed
	// how many connections veild closed then.
	caseHang, caseHangClosed = "hang_fresh", "hang_closed"
	// hangSeen bounds the wait until veild has seen it.
	hangSeen = 30 * time.Second
)

// hang measures until when new connections reach a server whose handlers hang.
func (s *run) hang(ctx context.Context) error {
	return s.inLab(ctx, lab.IPv4, func(ctx context.Context, b *broken) error {
		var waits []float64
		closed := 0
		for i := range s.Faults {
			wait, shut, err := b.hang(ctx)
			if err != nil {
				return fmt.Errorf("%d: %w", i+1, err)
			}
			waits, closed = append(waits, wait), closed+shut
			s.Progress("hang %d/%d: the last new connection to the server that hangs began after "+
				"%.0f ms, %d connections closed", i+1, s.Faults, wait, shut)
		}

		label := "Last new connection to an API server whose handlers hang"
		s.Add(caseHang, label, bench.Millisecond, waits...)
		s.Add(caseHang+suffixWorst, label+", the worst", bench.Millisecond, slices.Max(waits))
		s.Add(caseHangClosed, "Connections closed while handlers hang", bench.Count, float64(closed))
		return nil
	})
}

// hang lets the handlers of the second server hang until no new connection leads there. It returns
// when the last one began, milliseconds after the fault, and how many connections veild closed.
func (b *broken) hang(ctx context.Context) (wait float64, closed int, err error) {
	if err := b.good(ctx); err != nil {
		return 0, 0, err
	}
	if err := b.start(ctx, "fresh"); err != nil {
		return 0, 0, err
	}
	before, err := b.closed(ctx)
	if err != nil {
		return 0, 0, err
	}

	since, err := b.audit.stall()
	defer func() { err = errors.Join(err, b.audit.flow()) }()
	if err = errors.Join(err, b.mark()); err != nil {
		return 0, 0, err
	}
	if err := b.until(ctx, hangSeen, "hangs"); err != nil {
		return 0, 0, err
	}
	took, sum, err := b.served(ctx, since)
	if err != nil {
		return 0, 0, err
	}
	if sum.Failed == 0 {
		return 0, 0, errors.New("no new connection reached the server: its handlers did not hang")
	}
	after, err := b.closed(ctx)
	return took[client.KindFresh], after - before, err
}

// until waits until veild reports a state of the second server.
func (b *broken) until(ctx context.Context, limit time.Duration, want string) error {
	return lab.Until(ctx, limit, func() error {
		got, err := b.state(ctx)
		if err == nil && got != want {
			err = fmt.Errorf("veild reports state %q of the API server, want %q", got, want)
		}
		return err
	})
}
