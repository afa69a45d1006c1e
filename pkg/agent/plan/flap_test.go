package plan_test

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kubeveil/kubeveil/pkg/agent/plan"
	"github.com/kubeveil/kubeveil/pkg/agent/plan/plantest"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// lost are changes of the inputs, each of which means that the link between nodes is down for a
// moment.
var lost = map[string]func(*plan.Inputs){
	"no underlay": func(in *plan.Inputs) {
		in.UnderlayMTU, in.LocalAddrs, in.OtherAddrs = 0, nil, nil
	},
	"no route, addresses": func(in *plan.Inputs) { in.UnderlayMTU = 0 },
	"addresses are away":  func(in *plan.Inputs) { in.LocalAddrs = nil },
}

func TestALinkThatFlapsDoesNotCloseTheNode(t *testing.T) {
	for name, lose := range lost {
		t.Run(name, func(t *testing.T) {
			var f plan.Flap
			now := time.Unix(1000, 0)
			in := plantest.Two(t)
			_, before := f.Hold(now, in, plan.Decide(in))

			away := in
			lose(&away)
			if d := plan.Decide(away); len(d.Problems) == 0 {
				t.Fatal("without the debounce nothing is wrong: the case shows nothing")
			}
			for _, after := range []time.Duration{0, time.Second, plan.FlapLimit - time.Second} {
				got, d := f.Hold(now.Add(after), away, plan.Decide(away))
				if len(d.Problems) > 0 || len(d.Notes) != 1 ||
					!strings.Contains(d.Notes[0], "the node refuses new pods in") {
					t.Errorf("after %s: problems %q, notes %q", after, d.Problems, d.Notes)
				}
				ip := cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{}, netip.AddrPort{})
				if diff := cmp.Diff(before.Host, d.Host, ip) + cmp.Diff(before.Claim, d.Claim,
					ip); diff != "" || d.PodMTU != before.PodMTU {
					t.Errorf("after %s: MTU %d, was %d; (-before +now):\n%s", after, d.PodMTU,
						before.PodMTU, diff)
				}
				if got.UnderlayMTU != in.UnderlayMTU {
					t.Errorf("after %s: the underlay's MTU is %d", after, got.UnderlayMTU)
				}
			}
			_, d := f.Hold(now.Add(plan.FlapLimit), away, plan.Decide(away))
			if len(d.Problems) == 0 {
				t.Error("a link that stays away never closes the node")
			}

			// The link comes back and goes down again, so the time starts again.
			f.Hold(now.Add(2*plan.FlapLimit), in, plan.Decide(in))
			_, d = f.Hold(now.Add(3*plan.FlapLimit), away, plan.Decide(away))
			if len(d.Problems) > 0 {
				t.Errorf("the second time it is closed at once: %q", d.Problems)
			}
		})
	}
}

// Only a link that worked before is held, and only for problems of the link. Problems of the node
// itself take effect at once.
func TestOnlyAFitLinkIsHeld(t *testing.T) {
	var f plan.Flap
	in := plantest.Two(t)
	for name, lose := range lost {
		away := in
		lose(&away)
		if _, d := f.Hold(time.Unix(1000, 0), away, plan.Decide(away)); len(d.Problems) == 0 {
			t.Errorf("%s: held though no link was seen before", name)
		}
	}

	f.Hold(time.Unix(1000, 0), in, plan.Decide(in))
	bare := in
	bare.Table.Self = nil
	if _, d := f.Hold(time.Unix(1001, 0), bare, plan.Decide(bare)); len(d.Problems) == 0 {
		t.Error("a node that is not in the cluster is held ready")
	}
}

// The MTU of a link is its configuration, so a link that is too narrow closes the node at once.
func TestALinkThatIsTooNarrowClosesTheNode(t *testing.T) {
	var f plan.Flap
	in := plantest.Two(t)
	f.Hold(time.Unix(1000, 0), in, plan.Decide(in))
	in.UnderlayMTU = 552
	if _, d := f.Hold(time.Unix(1001, 0), in, plan.Decide(in)); len(d.Problems) == 0 {
		t.Errorf("held, notes %q", d.Notes)
	}
}

// A narrower link that still works is followed at once.
func TestANarrowerLinkIsFollowedAtOnce(t *testing.T) {
	var f plan.Flap
	in := plantest.Two(t)
	f.Hold(time.Unix(1000, 0), in, plan.Decide(in))
	in.UnderlayMTU = 1400
	_, d := f.Hold(time.Unix(1001, 0), in, plan.Decide(in))
	if d.PodMTU != 1340 ||
		slices.ContainsFunc(d.Notes, func(n string) bool { return strings.Contains(n, "closed") }) {
		t.Errorf("MTU %d, notes %q", d.PodMTU, d.Notes)
	}
}
