package storage_test

import (
	"testing"

	"github.com/kubeveil/kubeveil/e2e/lab"
	"github.com/kubeveil/kubeveil/e2e/node/nodetest"
)

// These parts need an API server and no node: our objects, the check of a cluster before an
// installation, and the store of volumes, at whose end the server is away.
func TestAPIServerAlone(t *testing.T) {
	ctx, l := nodetest.NewLab(t, lab.Options{Nodes: -1})
	t.Run("manifests are accepted", func(t *testing.T) { manifestsAccepted(ctx, t, l) })
	t.Run("veilctl check", func(t *testing.T) { installChecks(ctx, t, l) })
	t.Run("store of volumes", func(t *testing.T) { volumeStore(ctx, t, l) })
}
