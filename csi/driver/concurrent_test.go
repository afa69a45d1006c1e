package driver

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"github.com/kubeveil/kubeveil/internal/errtest"
)

// Concurrent calls for one volume each succeed, or fail with a code that makes the caller retry. In
// the end the volume is unchanged.
func TestConcurrentCallsSucceedOrAreRetryable(t *testing.T) {
	m, d := running(t, mounted(""), nil)
	calls := map[string]func(ctx context.Context) error{
		"stage": func(context.Context) error { return m.stage(d, mounted("")) },
		"publish": func(context.Context) error {
			return m.publish(d, mounted(""), "target", false)
		},
		"unpublish": func(context.Context) error { return m.unpublish(d, "target") },
		"unstage":   func(context.Context) error { return m.unstage(d) },
		"snapshot":  func(context.Context) error { return snapshotted(m, d) },
		"delete snapshot": func(ctx context.Context) error {
			_, err := d.DeleteSnapshot(ctx, &csi.DeleteSnapshotRequest{SnapshotId: snap})
			return err
		},
		"expand": func(ctx context.Context) error {
			_, err := d.NodeExpandVolume(ctx, &csi.NodeExpandVolumeRequest{
				VolumeId: pvc, VolumePath: m.path("target"),
				CapacityRange: &csi.CapacityRange{RequiredBytes: 2 * size},
			})
			return err
		},
		"statistics": func(ctx context.Context) error {
			_, err := d.NodeGetVolumeStats(ctx,
				&csi.NodeGetVolumeStatsRequest{VolumeId: pvc, VolumePath: m.path("target")})
			return err
		},
		"health": func(ctx context.Context) error {
			_, err := d.NodeGetVolumeHealth(ctx, &csi.NodeGetVolumeHealthRequest{VolumeId: pvc})
			return err
		},
		"wrap":    func(ctx context.Context) error { _, err := d.Rewrap(ctx); return err },
		"recover": d.Recover,
	}

	var names []string
	for name := range calls {
		names = append(names, name)
	}

	slices.Sort(names)
	understood := []codes.Code{codes.OK, codes.Aborted, codes.FailedPrecondition, codes.NotFound}
	const callers, each = 8, 40

	var all sync.WaitGroup
	for i := range uint64(callers) {
		r := rand.New(rand.NewPCG(1, i))
		all.Go(func() {
			for range each {
				name := names[r.IntN(len(names))]
				if err := calls[name](t.Context()); !slices.Contains(understood, Code(err)) {
					t.Errorf("%s: %v: %v", name, Code(err), err)
				}
			}
		})
	}

	all.Wait()
	errtest.Must(t, d.Recover(t.Context()), staged(m, d))

	m.greets("target")
	live := m.engine.Live()
	if len(live) != 1 || m.mounts.Made() != 1 {
		t.Fatalf("mappings %v, %d file systems made", live, m.mounts.Made())
	}
	if mapping, err := m.engine.Lookup(t.Context(), live[0]); err != nil || mapping.Suspended ||
		mapping.Inactive {
		t.Errorf("%+v, %v", mapping, err)
	}
}
