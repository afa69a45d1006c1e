package source

import (
	"context"

	"github.com/kubeveil/kubeveil/pkg/cluster"
)

// Source yields the claims about the cluster, revision after revision.
type Source interface {
	// Run calls yield with each new State, from one goroutine and one call at a
	// time, until ctx is done; it then returns ctx's error. The first states may be
	// unsynced. It returns any other error only if another try cannot
	// succeed. The State belongs to yield, which may keep it.
	Run(ctx context.Context, yield func(cluster.State)) error
}
