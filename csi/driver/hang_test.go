package driver

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"github.com/kubeveil/kubeveil/csi/mount"
	"github.com/kubeveil/kubeveil/csi/volume"
)

// stuck has file systems whose statistics hang until the test allows them to end.
type stuck struct {
	mount.System
	asked atomic.Int64
	goOn  chan struct{}
}

func (s *stuck) Usage(path string) (mount.Usage, error) {
	s.asked.Add(1)
	<-s.goOn
	return s.System.Usage(path)
}

// Requests for the statistics of a disk that hangs end within a bounded time, and occupy one thread
// regardless of how often the kubelet repeats them.
func TestStatisticsOfADiskThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, d := running(t, mounted(""), nil)
		s := &stuck{System: d.Mounts, goOn: make(chan struct{})}
		d.Mounts = s
		stats := func() (*csi.NodeGetVolumeStatsResponse, error) {
			return d.NodeGetVolumeStats(t.Context(),
				&csi.NodeGetVolumeStatsRequest{VolumeId: pvc, VolumePath: m.path("target")})
		}
		done := make(chan error, 1)
		go func() { // The test must end even if it fails.
			<-time.After(time.Hour)
			close(s.goOn)
		}()

		for range 3 {
			began := time.Now()
			if _, err := stats(); Code(err) != codes.DeadlineExceeded ||
				time.Since(began) != probePatience {
				t.Errorf("%v: %v after %v", Code(err), err, time.Since(began))
			}
		}

		go func() {
			_, err := stats()
			done <- err
		}()
		synctest.Wait()
		if n := s.asked.Load(); n != 1 {
			t.Errorf("%d reads hang, want 1", n)
		}

		<-done
		<-s.goOn
		synctest.Wait()
		if r, err := stats(); err != nil || r.Usage[0].Total != size {
			t.Errorf("once the disk answers: %v, %v", r, err)
		}
		if n := s.asked.Load(); n != 2 {
			t.Errorf("the disk was read %d times, want once more after it answered", n)
		}
	})
}

// A volume that is already published is published again from the cache, without the API server. All
// other decisions need the API server.
func TestPublishedAgainWithoutAPIServer(t *testing.T) {
	for name, c := range map[string]*csi.VolumeCapability{"file system": mounted(""),
		"device": block()} {
		t.Run(name, func(t *testing.T) {
			m, d := running(t, c, nil)
			d.Cache = d.anySet.Store
			d.anySet.Store = &listed{Store: d.anySet.Store, away: volume.ErrUnavailable}
			if err := m.publish(d, c, "target", false); err != nil {
				t.Errorf("again: %v", err)
			}
			for what, err := range map[string]error{
				"to another pod":   m.publish(d, c, "second", false),
				"with other flags": m.publish(d, c, "target", true),
			} {
				if Code(err) != codes.Unavailable {
					t.Errorf("%s: %v: %v", what, Code(err), err)
				}
			}
		})
	}
}
