package dropwatch

import (
	"strings"
	"testing"
	"time"

	"github.com/kubeveil/kubeveil/pkg/guard/chains"
	"github.com/kubeveil/kubeveil/pkg/telemetry"
)

func TestLostMarksAreAProblemForAWhile(t *testing.T) {
	var w Watch
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
		if got := w.Problems(s, start.Add(step.after)); (len(got) > 0) != step.problem {
			t.Errorf("%s: problems %q", step.situation, got)
		}
	}
}

func TestDatagramsOfUnknownSourcesAreAProblemOfSilentPeers(t *testing.T) {
	var w Watch
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
			Guard: telemetry.Guard{Drops: []telemetry.Drop{{Name: chains.TunnelUnknownSource,
				Packets: step.dropped}}},
		}
		if got := w.Problems(s, start.Add(step.after)); (len(got) > 0) != step.problem {
			t.Errorf("%s: problems %q", step.situation, got)
		}
	}
}

func TestRecentDropsOfTheClusterAreAProblem(t *testing.T) {
	var w Watch
	start := time.Unix(1_000_000, 0)
	for _, step := range []struct {
		situation string
		reason    string
		dropped   uint64
		after     time.Duration
		problem   string
	}{
		{"some of an earlier veild", "dst_in_range", 7, 0, ""},
		{"none since", "dst_in_range", 7, time.Minute, ""},
		{"three more", "dst_in_range", 10, 2 * time.Minute, "(dst_in_range 3)"},
		{"two more", "dst_in_range", 12, 5 * time.Minute, "(dst_in_range 5)"},
		{"none for long", "dst_in_range", 12, 16 * time.Minute, ""},
		{"one more", "dst_in_range", 13, 17 * time.Minute, "(dst_in_range 1)"},
		{"another reason, first seen", "pod_unmarked", 4, 40 * time.Minute, ""},
		{"the counters began anew", "pod_unmarked", 1, 41 * time.Minute, ""},
		{"a pod's forged source", "pod_spoofed_source", 1, 60 * time.Minute, ""},
		{"another one", "pod_spoofed_source", 9, 61 * time.Minute, ""},
	} {
		s := telemetry.Status{Guard: telemetry.Guard{Drops: []telemetry.Drop{
			{Name: step.reason, Packets: step.dropped}}}}

		got := strings.Join(w.Problems(s, start.Add(step.after)), "; ")
		if (got != "") != (step.problem != "") || !strings.Contains(got, step.problem) {
			t.Errorf("%s: problems %q, want %q", step.situation, got, step.problem)
		}
	}
}

// Each reason for which a packet of the cluster is dropped that was about to cross the network in
// clear, or that arrived in clear, is a problem.
func TestEachDropOfTheClusterIsAProblem(t *testing.T) {
	for _, reason := range []string{"src_in_range", "dst_in_range", "pod_to_range", "pod_to_node",
		"pod_mark_lost", "pod_unmarked"} {
		var w Watch
		s := telemetry.Status{Guard: telemetry.Guard{Drops: []telemetry.Drop{{Name: reason}}}}
		w.Problems(s, time.Unix(1, 0))
		s.Guard.Drops[0].Packets = 1
		if got := w.Problems(s, time.Unix(2, 0)); len(got) != 1 || !strings.Contains(got[0], reason) {
			t.Errorf("%s: problems %q", reason, got)
		}
	}
}
