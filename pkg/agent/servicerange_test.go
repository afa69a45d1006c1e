package agent

import (
	"net/netip"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/config"
	"github.com/kubeveil/kubeveil/pkg/hostnet"
	"github.com/kubeveil/kubeveil/pkg/hostnet/rtnetlink"
)

// Ranges that were added at run time are closed like the configured ranges: by routes of pods and
// of the host, and in the guard. The node stays ready.
func TestAddedServiceRangesAreClosed(t *testing.T) {
	for _, proxy := range []string{config.ServiceProxyNone, config.ServiceProxyEBPF} {
		t.Run(proxy, func(t *testing.T) {
			in := two(t)
			in.cfg.ServiceProxy = proxy
			in.table.ServiceRanges = prefixes("198.18.144.0/24", "fd42:6::/112")
			in.rangeProblems = []string{"a range is not closed"}
			d := decide(in)
			if len(d.problems) != 0 || !slices.Contains(d.notes, "a range is not closed") {
				t.Errorf("problems %q, notes %q", d.problems, d.notes)
			}
			for _, r := range in.table.ServiceRanges {
				if !slices.Contains(d.guard.Ranges, r) {
					t.Errorf("the guard does not know %s: %v", r, d.guard.Ranges)
				}
				for _, table := range []int{abi.TablePod, unix.RT_TABLE_MAIN} {
					if !closes(hostnet.Plan(d.host), table, r) {
						t.Errorf("%s is not unreachable in table %d", r, table)
					}
				}
			}
			if slices.Contains(in.cfg.ServiceRanges, in.table.ServiceRanges[0]) {
				t.Error("the configuration was changed")
			}
		})
	}
}

// closes reports whether a routing table has an unreachable route for the range, with a metric
// larger than those of the routes into tunnels.
func closes(s hostnet.State, table int, r netip.Prefix) bool {
	return slices.ContainsFunc(s.Routes, func(x rtnetlink.Route) bool {
		return x.Table == table && x.Dst == r && x.Metric == abi.MetricRange && x.Device == ""
	})
}
