package source

import (
	"context"

	"github.com/kubeveil/kubeveil/pkg/cluster"
)

// Source delivers the claims about the cluster, one revision after another.
type Source interface {
	// Run calls yield with each new State until ctx is done, and then returns ctx's error. All
	// calls of yield come from one goroutine. The first states may be unsynced. Run returns another
	// error only if it is useless to call Run again. yield may keep the State.
	Run(ctx context.Context, yield func(cluster.State)) error
}
