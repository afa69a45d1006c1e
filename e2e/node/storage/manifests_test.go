package storage_test

import (
	"context"
	"path/filepath"
	"testing"

	"github.com/kubeveil/kubeveil/e2e/lab"
	"github.com/kubeveil/kubeveil/e2e/node/nodetest"
	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/manifesttest"
)

// manifestsAccepted: a real API server accepts every object.
func manifestsAccepted(ctx context.Context, t *testing.T, l *lab.Lab) {
	all := append(manifesttest.Kustomized(t, filepath.Join(nodetest.Root(t), "manifests")),
		manifesttest.Kustomized(t, filepath.Join(nodetest.Root(t), "manifests/uninstall"))...)
	all = append(all, manifesttest.Kustomized(t, filepath.Join(nodetest.Root(t), csiManifests))...)
	// The API server of the lab has no definition of ServiceMonitor.
	all = append(all, manifesttest.Read(t, filepath.Join(nodetest.Root(t),
		"manifests/components/servicemonitor/service.yaml")))
	for _, m := range all {
		t.Run(m.Object.GetKind()+" "+m.Object.GetName(), func(t *testing.T) {
			errtest.Check(t, nodetest.DryApply(ctx, l, m.Object))
		})
	}
}
