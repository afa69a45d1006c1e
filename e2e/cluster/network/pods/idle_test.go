package pods

import (
	"strings"
	"testing"

	"github.com/kubeveil/kubeveil/pkg/telemetry"
)

func TestQuietNodes(t *testing.T) {
	status := func(pods int, spoofed, linkLocal, foreign uint64, problems ...string) telemetry.Status {
		return telemetry.Status{Pods: pods, Problems: problems, Guard: telemetry.Guard{
			Drops: []telemetry.Drop{{Name: "pod_spoofed_source", Packets: spoofed},
				{Name: "pod_link_local", Packets: linkLocal, Harmless: true},
				{Name: "tunnel_unknown_source", Packets: foreign}}}}
	}
	before := status(3, 7, 20, 0, "old")
	for name, c := range map[string]struct {
		after telemetry.Status
		want  string
	}{
		"quiet":           {status(10, 7, 90, 4, "old"), ""},
		"fewer problems":  {status(13, 7, 20, 0), ""},
		"a spoofer":       {status(13, 8, 90, 0), "pod_spoofed_source: 8 packets, before 7"},
		"another problem": {status(13, 7, 90, 0, "old", "new"), `problem "new"`},
		"a pod is gone":   {status(9, 7, 90, 0), "9 pods, want 10"},
	} {
		err := quiet(before, c.after, 10)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
	if n := harmless(before); n != 20 {
		t.Errorf("%d harmless packets", n)
	}
}
