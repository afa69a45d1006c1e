package conntrack

import (
	"log/slog"
	"testing"

	"github.com/kubeveil/kubeveil/pkg/config"
	"github.com/kubeveil/kubeveil/pkg/pod"
	"github.com/kubeveil/kubeveil/pkg/telemetry"
)

func TestFeatureShowsNothingBeforeItHasRead(t *testing.T) {
	f := NewFeature(config.Config{PodConnections: -1}, pod.Paths{PodDir: t.TempDir()}, slog.New(slog.DiscardHandler))
	var s telemetry.Status
	f.Status(&s)
	if s.Connections != nil || len(s.Problems) != 0 {
		t.Errorf("status %+v", s)
	}
}
