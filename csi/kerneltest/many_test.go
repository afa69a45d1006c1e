package kerneltest

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kubeveil/kubeveil/csi/volume"
	"github.com/kubeveil/kubeveil/internal/filetest"
)

// Many volumes are used at once, in little memory.
func TestManyVolumesInLittleMemory(t *testing.T) {
	const many = 100
	n := newNode(t)
	n.files.Sparse = true

	for i := range many {
		n.create(fmt.Sprintf("v%d", i))
	}

	openAll := func() []time.Duration {
		took := make([]time.Duration, many)
		var wg sync.WaitGroup
		for i := range many {
			wg.Go(func() {
				start := time.Now()
				if _, err := n.Open(t.Context(), fmt.Sprintf("v%d", i),
					volume.OpenOptions{}); err != nil {
					t.Error(err)
				}
				took[i] = time.Since(start)
			})
		}
		wg.Wait()
		slices.Sort(took)
		return took
	}

	start := time.Now()
	openAll()
	t.Logf("%d new volumes in %v", many, time.Since(start))

	for i := range many {
		n.close(fmt.Sprintf("v%d", i))
	}

	filetest.Write(t, "/proc/self/clear_refs", []byte("5"), 0)

	base := peak(t)
	start = time.Now()
	took := openAll()
	t.Logf("%d existing volumes in %v, each p50 %v, max %v", many, time.Since(start), took[many/2],
		took[many-1])
	most := peak(t)
	t.Logf("peak resident memory of the whole process %d KiB, %d before", most, base)
	if most > 64<<10 {
		t.Errorf("peak memory %d KiB, want at most 64 MiB", most)
	}

	one := n.open("v0", volume.OpenOptions{})
	n.close("v0")
	start = time.Now()
	n.open("v0", volume.OpenOptions{})
	t.Logf("one existing volume alone: %v (adopted before: %v)", time.Since(start), one.Adopted)
}

// peak returns the largest resident size that the process has had, in KiB.
func peak(t *testing.T) int {
	t.Helper()
	status := filetest.Read(t, "/proc/self/status")
	for line := range strings.Lines(string(status)) {
		if v, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			var kib int
			if _, err := fmt.Sscan(v, &kib); err == nil && kib > 0 {
				return kib
			}
		}
	}
	t.Fatal("/proc/self/status lacks the peak of resident memory")
	return 0
}
