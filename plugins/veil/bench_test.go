package main

import (
	"bytes"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

// BenchmarkAddAgainstPtp runs ADD and DEL of veil and of the reference ptp plugin
// in turn, both with host-local, and reports the medians of ADD and their ratio.
// Run it with -benchtime=50x; it fails nothing.
func BenchmarkAddAgainstPtp(b *testing.B) {
	for _, tt := range []struct {
		name    string
		subnets []string
	}{
		{"IPv4", []string{"198.18.1.0/24"}},
		{"dual", []string{"198.18.1.0/24", "fd42:1:0:1::/64"}},
	} {
		b.Run(tt.name, func(b *testing.B) {
			n := newNode(b)
			build(b, reference+"main/ptp")
			took := make(map[string][]time.Duration)
			for i := range b.N {
				for _, plugin := range []string{"veil", "ptp"} {
					a, _ := newPod(b, fmt.Sprintf("%s%d", plugin, i))
					c := conf("1.0.0", object{"name": plugin, "type": plugin,
						"ipam": ipamOf(tt.subnets...)})
					took[plugin] = append(took[plugin], n.timed(plugin, "ADD", a, c))
					n.timed(plugin, "DEL", a, c)
				}
			}

			ours, theirs := median(took["veil"]), median(took["ptp"])
			b.ReportMetric(ours.Seconds()*1000, "veil-ms")
			b.ReportMetric(theirs.Seconds()*1000, "ptp-ms")
			b.ReportMetric(float64(ours)/float64(theirs), "ratio")
		})
	}
}

// timed runs a plugin on the node's own thread, with nothing between.
func (n *node) timed(plugin, verb string, a attachment, conf []byte) time.Duration {
	n.t.Helper()
	var took time.Duration
	n.Run(n.t, func() error {
		cmd := exec.Command(filepath.Join(binDir, plugin))
		cmd.Env = []string{"CNI_COMMAND=" + verb, "CNI_CONTAINERID=" + a.id,
			"CNI_IFNAME=" + a.ifName, "CNI_NETNS=" + a.netns, "CNI_PATH=" + binDir}
		cmd.Stdin = bytes.NewReader(conf)
		start := time.Now()
		out, err := cmd.CombinedOutput()
		took = time.Since(start)
		if err != nil {
			return fmt.Errorf("%s %s: %w: %s", plugin, verb, err, out)
		}
		return nil
	})
	return took
}

func median(d []time.Duration) time.Duration {
	slices.Sort(d)
	return d[len(d)/2]
}
