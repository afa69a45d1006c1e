package engine

import (
	"os"
	"testing"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/bench/suite"
)

// aRun returns a run whose device processes have their files in dir.
func aRun(t *testing.T, dir string) *run {
	t.Helper()
	return &run{RunConfig: RunConfig{Choice: suite.Choice{Progress: t.Logf}, Upgrades: 2}, dir: dir}
}

// Part garbage measures the first packet to a peer with and without garbage.
func TestFirstPacketBesideGarbageIsMeasured(t *testing.T) {
	nettest.NeedLong(t, "it only tries a measurement")
	nettest.NeedTUN(t)
	nettest.NeedProgram(t, "ip")
	dir, err := os.MkdirTemp("/dev/shm", "kvtest")
	errtest.Must(t, err)
	defer os.RemoveAll(dir)
	c, err := aRun(t, dir).measureGarbage(t.Context(), 2)
	errtest.Must(t, err)
	if c.Ours.N != 2 || c.Ours.Min <= 0 || c.Base.N != 2 || c.Ratio == nil {
		t.Errorf("case %+v, want 2 values each", c)
	}
}

// measureCrowd measures handovers of a device whose peers have sessions. gates.json has limits for
// them.
func TestUpgradesOfManyPeersAreMeasured(t *testing.T) {
	nettest.NeedLong(t, "it only tries a measurement")
	nettest.NeedTUN(t)
	nettest.NeedProgram(t, "ip")
	dir, err := os.MkdirTemp("/dev/shm", "kvtest")
	errtest.Must(t, err)
	defer os.RemoveAll(dir)
	still, err := measureCrowd(t.Context(), dir, 200, 3)
	errtest.Must(t, err)
	if still.N != 3 || still.Min <= 0 {
		t.Errorf("stood still for %+v, want 3 positive values", still)
	}
}
