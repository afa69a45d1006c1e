package faultlab

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/kubeveil/kubeveil/e2e/bench/api/client"
	"github.com/kubeveil/kubeveil/e2e/lab"
)

// hangSeen bounds the wait until veild reports that the server hangs.
const hangSeen = 30 * time.Second

// Hang makes the handlers of the second server hang until no new connection reaches that server. It
// returns the time from the fault to the last such connection in milliseconds, and the number of
// connections that veild closed meanwhile.
func (b *Lab) Hang(ctx context.Context) (wait float64, closed int, err error) {
	if err := b.Good(ctx); err != nil {
		return 0, 0, err
	}
	if err := b.start(ctx, "fresh"); err != nil {
		return 0, 0, err
	}
	before, err := b.Closed(ctx)
	if err != nil {
		return 0, 0, err
	}

	since, err := b.audit.stall()
	defer func() { err = errors.Join(err, b.audit.flow()) }()
	if err = errors.Join(err, b.Mark()); err != nil {
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
	after, err := b.Closed(ctx)
	return took[client.KindFresh], after - before, err
}

// until waits at most limit until veild reports the state want of the second server.
func (b *Lab) until(ctx context.Context, limit time.Duration, want string) error {
	return lab.Until(ctx, limit, func() error {
		got, err := b.state(ctx)
		if err == nil && got != want {
			err = fmt.Errorf("veild reports state %q of the API server, want %q", got, want)
		}
		return err
	})
}
