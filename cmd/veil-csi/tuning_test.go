package main

import (
	"log/slog"
	"testing"

	"github.com/kubeveil/kubeveil/csi/crypt/dmcrypt"
	"github.com/kubeveil/kubeveil/internal/filetest"
)

// --latency-tuning decides whether the engines of all backends may use dm-crypt's flags for
// latency.
func TestLatencyTuningReachesTheEngines(t *testing.T) {
	release := filetest.Read(t, "/proc/sys/kernel/osrelease")

	for given, want := range map[string]bool{
		tuningAuto: dmcrypt.LatencyIsSafe(string(release)), tuningOn: true, tuningOff: false,
	} {
		o := options{latencyTuning: given, files: t.TempDir(), disks: "/dev/none",
			claims: t.TempDir(), run: t.TempDir()}
		sets, err := o.sets(states{}, slog.New(slog.DiscardHandler))
		if err != nil || len(sets) != 2 {
			t.Fatalf("%s: %d backends, %v", given, len(sets), err)
		}
		for name, set := range sets {
			if engine, ok := set.Engine.(dmcrypt.Kernel); !ok || engine.Inline != want {
				t.Errorf("%s, backend %s: engine %+v, want Inline %v", given, name, set.Engine, want)
			}
		}
	}
}
