package agent

import (
	"context"
	"slices"
	"time"

	"github.com/kubeveil/kubeveil/pkg/node"
)

// otherCNIEvery is how often CNI configurations of others are looked for. A runtime
// takes a new one within a second or so.
const otherCNIEvery = time.Second

// watchOtherCNI wakes the loop when another CNI configuration that sorts before
// ours came, changed or went, until ctx ends.
func (a *Agent) watchOtherCNI(ctx context.Context, confDir string) error {
	tick := time.NewTicker(otherCNIEvery)
	defer tick.Stop()
	var last []string
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		if now := node.OtherCNI(confDir); !slices.Equal(now, last) {
			last = now
			a.poke()
		}
	}
}

// shutForOtherCNI makes another CNI configuration that sorts before ours a problem
// of d and shuts the node, also while its peers are not known: the runtime would
// start pods with a network that is not encrypted, and must not find the node fit.
func (a *Agent) shutForOtherCNI(confDir string, d *decision) error {
	others := node.OtherCNI(confDir)
	if len(others) == 0 {
		return nil
	}
	d.problems = slices.Concat(d.problems, others)
	return a.shut()
}
