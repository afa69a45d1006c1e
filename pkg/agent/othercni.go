package agent

import (
	"context"
	"slices"
	"time"

	"github.com/kubeveil/kubeveil/internal/poll"
	"github.com/kubeveil/kubeveil/pkg/agent/plan"
	"github.com/kubeveil/kubeveil/pkg/node"
)

// otherCNIEvery is the interval of checks for foreign CNI configurations. A runtime loads a new one
// within about a second.
const otherCNIEvery = time.Second

// watchOtherCNI wakes the loop when a CNI configuration that sorts before ours appears, changes or
// disappears, until ctx ends.
func (a *Agent) watchOtherCNI(ctx context.Context, confDir string) error {
	var last []string
	return poll.Each(ctx, otherCNIEvery, func(time.Time) {
		if now := node.OtherCNI(confDir); !slices.Equal(now, last) {
			last = now
			a.poke()
		}
	})
}

// shutForOtherCNI adds a problem to d and shuts the node if a CNI configuration sorts before ours,
// even while the node's peers are not known. The runtime would start pods with the other network,
// which does not encrypt, so the node must not be ready.
func (l *loop) shutForOtherCNI(confDir string, d *plan.Decision) error {
	others := node.OtherCNI(confDir)
	if len(others) == 0 {
		return nil
	}
	d.Problems = slices.Concat(d.Problems, others)
	return l.shut()
}
