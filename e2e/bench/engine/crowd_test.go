package engine

import (
	"os"
	"testing"

	"github.com/kubeveil/kubeveil/internal/nettest"
)

// The lane of large devices measures what gates.json has limits for: handovers of peers that have
// sessions.
func TestUpgradesOfManyPeersAreMeasured(t *testing.T) {
	nettest.NeedTUN(t)
	nettest.NeedProgram(t, "ip")
	dir, err := os.MkdirTemp("/dev/shm", "kvtest")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	still, err := measureCrowd(t.Context(), dir, 200, 3)
	if err != nil {
		t.Fatal(err)
	}
	if still.N != 3 || still.Min <= 0 {
		t.Errorf("stood still for %+v, want 3 positive values", still)
	}
}
