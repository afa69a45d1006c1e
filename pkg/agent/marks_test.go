package agent

import (
	"testing"
	"time"

	"github.com/kubeveil/kubeveil/pkg/guard"
	"github.com/kubeveil/kubeveil/pkg/telemetry"
)

func TestLostMarksAreAProblemForAWhile(t *testing.T) {
	var c guardCounts
	start := time.Unix(1_000_000, 0)
	for _, step := range []struct {
		situation string
		restored  uint64
		after     time.Duration
		problem   bool
	}{
		{"none was lost", 0, 0, false},
		{"the first", 3, time.Minute, true},
		{"no more since", 3, 10 * time.Minute, true},
		{"none for long", 3, 12 * time.Minute, false},
		{"again", 4, time.Hour, true},
	} {
		s := telemetry.Status{Guard: telemetry.Guard{MarksRestored: step.restored}}
		if got := c.problems(s, start.Add(step.after)); (len(got) > 0) != step.problem {
			t.Errorf("%s: problems %q", step.situation, got)
		}
	}
}

func TestDatagramsOfUnknownSourcesAreAProblemOfSilentPeers(t *testing.T) {
	var c guardCounts
	start := time.Unix(1_000_000, 0)
	for _, step := range []struct {
		situation string
		dropped   uint64
		state     telemetry.PeerState
		after     time.Duration
		problem   bool
	}{
		{"none", 0, telemetry.PeerSilent, 0, false},
		{"somebody sends some", 5, telemetry.PeerUp, time.Minute, false},
		{"and a peer falls silent", 6, telemetry.PeerSilent, 2 * time.Minute, true},
		{"the peer is heard again", 6, telemetry.PeerUp, 3 * time.Minute, false},
		{"a peer is silent, none came for long", 6, telemetry.PeerSilent, time.Hour, false},
	} {
		s := telemetry.Status{
			Peers: []telemetry.Peer{{Name: "b", State: step.state}},
			Guard: telemetry.Guard{Drops: []telemetry.Drop{{Name: guard.TunnelUnknownSource,
				Packets: step.dropped}}},
		}
		if got := c.problems(s, start.Add(step.after)); (len(got) > 0) != step.problem {
			t.Errorf("%s: problems %q", step.situation, got)
		}
	}
}
