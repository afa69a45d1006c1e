package plan_test

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/kubeveil/kubeveil/pkg/agent/plan"
	"github.com/kubeveil/kubeveil/pkg/agent/plan/plantest"

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
			in := plantest.Two(t)
			in.Config.ServiceProxy = proxy
			in.Table.ServiceRanges = prefixes("198.18.144.0/24", "fd42:6::/112")
			in.RangeProblems = []string{"a range is not closed"}
			d := plan.Decide(in)
			if len(d.Problems) != 0 || !slices.Contains(d.Notes, "a range is not closed") {
				t.Errorf("problems %q, notes %q", d.Problems, d.Notes)
			}
			for _, r := range in.Table.ServiceRanges {
				if !slices.Contains(d.Guard.Ranges, r) {
					t.Errorf("the guard does not know %s: %v", r, d.Guard.Ranges)
				}
				for _, table := range []int{abi.TablePod, unix.RT_TABLE_MAIN} {
					if !closes(hostnet.Plan(d.Host), table, r) {
						t.Errorf("%s is not unreachable in table %d", r, table)
					}
				}
			}
			if slices.Contains(in.Config.ServiceRanges, in.Table.ServiceRanges[0]) {
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
