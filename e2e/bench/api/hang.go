package api

import (
	"context"
	"fmt"
	"slices"

	"github.com/kubeveil/kubeveil/e2e/bench/api/faultlab"
	"github.com/kubeveil/kubeveil/e2e/lab"
	"github.com/kubeveil/kubeveil/pkg/bench"
)

const (
	// caseHang is the time from the fault to the last new connection to a server whose handlers
	// hang. caseHangClosed is the number of connections that veild closed meanwhile.
	caseHang, caseHangClosed = "hang_fresh", "hang_closed"
)

// hang measures how long new connections still reach a server whose handlers hang.
func (s *run) hang(ctx context.Context) error {
	return s.inLab(ctx, lab.IPv4, func(ctx context.Context, b *faultlab.Lab) error {
		var waits []float64
		closed := 0
		for i := range s.Faults {
			wait, shut, err := b.Hang(ctx)
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
