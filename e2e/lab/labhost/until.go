package labhost

import (
	"context"
	"time"

	"github.com/kubeveil/kubeveil/internal/poll"
)

// Stop wraps an error after which Until need not try again.
func Stop(err error) error { return poll.Stop(err) }

// Until calls fn until it returns nil, for at most timeout. The error contains fn's last error.
func Until(ctx context.Context, timeout time.Duration, fn func() error) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	return poll.Until(ctx, time.Millisecond, 100*time.Millisecond, fn)
}
