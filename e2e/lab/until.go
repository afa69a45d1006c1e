package lab

import (
	"context"
	"time"

	"github.com/kubeveil/kubeveil/e2e/lab/labhost"
)

// Stop wraps an error after which Until need not try again.
func Stop(err error) error { return labhost.Stop(err) }

// Until calls fn until it returns nil, for at most timeout. The error contains fn's last error.
func Until(ctx context.Context, timeout time.Duration, fn func() error) error {
	return labhost.Until(ctx, timeout, fn)
}
