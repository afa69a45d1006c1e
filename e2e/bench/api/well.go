package api

import (
	"context"
	"errors"
	"fmt"

	"github.com/kubeveil/kubeveil/e2e/bench/api/faultlab"
	"github.com/kubeveil/kubeveil/e2e/lab"
	"github.com/kubeveil/kubeveil/pkg/bench"
)

// suffixClosed marks a case whose value is the number of working connections that were closed.
const suffixClosed = "_closed"

// trouble is an impairment of an API server whose connections still work and must stay open.
type trouble struct {
	name, title string
	// states holds states of the server. veild must report at least one of them; otherwise it has
	// not detected the trouble.
	states []string
	// run impairs the second server for a while.
	run func(*faultlab.Lab, context.Context) error
}

// notReady has two states, because a server without etcd may answer later than veild waits. veild
// then reports that the server hangs.
var notReady = []string{"not_ready", "hangs"}

var troubles = []trouble{
	{"not_ready", "an API server is not ready for 30 s", notReady, (*faultlab.Lab).Unready},
	{"slow", "packets of an API server take 200 ms longer, for 30 s", []string{"slow"},
		(*faultlab.Lab).Slow},
	{"flapping", "an API server is not ready for 1 s and ready for 5 s, ten times", notReady,
		(*faultlab.Lab).Flap},
}

func caseWell(t trouble) string { return partWell + "_" + t.name + suffixClosed }

// well counts the connections that are closed although they still work.
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
