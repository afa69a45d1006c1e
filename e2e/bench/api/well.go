package api

import (
	"context"
	"errors"
	"fmt"

	"github.com/kubeveil/kubeveil/e2e/bench/api/faultlab"
	"github.com/kubeveil/kubeveil/e2e/lab"
	"github.com/kubeveil/kubeveil/pkg/bench"
)

// suffixClosed marks the number of connections to good servers that were closed.
const suffixClosed = "_closed"

// trouble happens to an API server whose connections are well and must stay open.
type trouble struct {
	name, title string
	// states are the states of which veild must report at least one. Otherwise it has not noticed
	// the fault.
	states []string
	// run lets it happen to the second server, and takes it back.
	run func(*faultlab.Lab, context.Context) error
}

// A server without etcd may need longer to answer than veild waits for it: then it hangs.
var notReady = []string{"not_ready", "hangs"}

var troubles = []trouble{
	{"not_ready", "an API server is not ready for 30 s", notReady, (*faultlab.Lab).Unready},
	{"slow", "packets of an API server take 200 ms longer, for 30 s", []string{"slow"},
		(*faultlab.Lab).Slow},
	{"flapping", "an API server is not ready for 1 s and ready for 5 s, ten times", notReady,
		(*faultlab.Lab).Flap},
}

func caseWell(t trouble) string { return partWell + "_" + t.name + suffixClosed }

// well counts connections that are closed while they are well.
func (s *run) well(ctx context.Context) error {
	return s.inLab(ctx, lab.IPv4, func(ctx context.Context, b *faultlab.Lab) error {
		return b.WhileWritten(ctx, func(ctx context.Context) error {
			var errs []error
			for _, t := range troubles {
				closed, what, err := b.Bear(ctx, t.states, t.run)
				if err != nil {
					s.Progress("%s: %v", t.name, err)
					errs = append(errs, fmt.Errorf("%s: %w", t.name, err))
					continue
				}
				s.Progress("%s: %d connections closed; %s", t.name, closed, what)
				s.Add(caseWell(t), "Connections closed that were well: "+t.title, bench.Count,
					float64(closed))
			}
			return errors.Join(errs...)
		})
	})
}
