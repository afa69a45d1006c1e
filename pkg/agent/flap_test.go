package agent

import (
	"errors"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/kubeveil/kubeveil/pkg/telemetry/health"
)

// lost are changes of the inputs, each of which means that the link between nodes is down for a
// moment.
var lost = map[string]func(*inputs){
	"no underlay": func(in *inputs) {
		in.underlayMTU, in.localAddrs, in.otherAddrs = 0, nil, nil
	},
	"no route, addresses": func(in *inputs) { in.underlayMTU = 0 },
	"addresses are away":  func(in *inputs) { in.localAddrs = nil },
}

func TestALinkThatFlapsDoesNotCloseTheNode(t *testing.T) {
	for name, lose := range lost {
		t.Run(name, func(t *testing.T) {
			var f flap
			now := time.Unix(1000, 0)
			in := two(t)
			_, before := f.hold(now, in, decide(in))

			away := in
			lose(&away)
			if d := decide(away); len(d.problems) == 0 {
				t.Fatal("without the debounce nothing is wrong: the case shows nothing")
			}
			for _, after := range []time.Duration{0, time.Second, flapLimit - time.Second} {
				got, d := f.hold(now.Add(after), away, decide(away))
				if len(d.problems) > 0 || len(d.notes) != 1 ||
					!strings.Contains(d.notes[0], "the node refuses new pods in") {
					t.Errorf("after %s: problems %q, notes %q", after, d.problems, d.notes)
				}
				ip := cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{}, netip.AddrPort{})
				if diff := cmp.Diff(before.host, d.host, ip) + cmp.Diff(before.claim, d.claim,
					ip); diff != "" || d.podMTU != before.podMTU {
					t.Errorf("after %s: MTU %d, was %d; (-before +now):\n%s", after, d.podMTU,
						before.podMTU, diff)
				}
				if got.underlayMTU != in.underlayMTU {
					t.Errorf("after %s: the underlay's MTU is %d", after, got.underlayMTU)
				}
			}
			if _, d := f.hold(now.Add(flapLimit), away, decide(away)); len(d.problems) == 0 {
				t.Error("a link that stays away never closes the node")
			}

			// The link comes back and goes down again, so the time starts again.
			f.hold(now.Add(2*flapLimit), in, decide(in))
			if _, d := f.hold(now.Add(3*flapLimit), away, decide(away)); len(d.problems) > 0 {
				t.Errorf("the second time it is closed at once: %q", d.problems)
			}
		})
	}
}

// While the link is down, the kernel refuses routes with its addresses as source. The node stays
// ready in spite of that error, but only as long as the last good link is held.
func TestATurnThatFailsWhileTheLinkFlapsLeavesTheNodeReady(t *testing.T) {
	l := &loop{Agent: &Agent{log: slog.New(slog.DiscardHandler), wake: make(chan struct{}, 1),
		health: health.New(loopLimit, stepApply)}}
	l.view.Store(&view{})
	l.health.Done(stepApply)
	now, in := time.Unix(1000, 0), two(t)
	l.flap.hold(now, in, decide(in))
	away := in
	lost["no underlay"](&away)

	for _, step := range []struct {
		situation string
		after     time.Duration
		in        inputs
		ready     bool
	}{
		{"the link is held", time.Second, away, true},
		{"it stays away", time.Second + flapLimit, away, false},
		{"it is up", time.Second + 2*flapLimit, in, false},
	} {
		l.flap.hold(now.Add(step.after), step.in, decide(step.in))
		err := errors.New("the kernel takes no route")
		if got := l.finish(step.in, decision{}, nil, err); !errors.Is(got, err) {
			t.Errorf("%s: %v", step.situation, got)
		}
		if why := l.health.Ready(); len(why) == 0 != step.ready {
			t.Errorf("%s: not ready because of %q, want ready %t", step.situation, why, step.ready)
		}
		l.health.Done(stepApply)
	}
}

// Only a link that worked before is held, and only for problems of the link. Problems of the node
// itself take effect at once.
func TestOnlyAFitLinkIsHeld(t *testing.T) {
	var f flap
	in := two(t)
	for name, lose := range lost {
		away := in
		lose(&away)
		if _, d := f.hold(time.Unix(1000, 0), away, decide(away)); len(d.problems) == 0 {
			t.Errorf("%s: held though no link was seen before", name)
		}
	}

	f.hold(time.Unix(1000, 0), in, decide(in))
	bare := in
	bare.table.Self = nil
	if _, d := f.hold(time.Unix(1001, 0), bare, decide(bare)); len(d.problems) == 0 {
		t.Error("a node that is not in the cluster is held ready")
	}
}

// The MTU of a link is its configuration, so a link that is too narrow closes the node at once.
func TestALinkThatIsTooNarrowClosesTheNode(t *testing.T) {
	var f flap
	in := two(t)
	f.hold(time.Unix(1000, 0), in, decide(in))
	in.underlayMTU = 552
	if _, d := f.hold(time.Unix(1001, 0), in, decide(in)); len(d.problems) == 0 {
		t.Errorf("held, notes %q", d.notes)
	}
}

// A narrower link that still works is followed at once.
func TestANarrowerLinkIsFollowedAtOnce(t *testing.T) {
	var f flap
	in := two(t)
	f.hold(time.Unix(1000, 0), in, decide(in))
	in.underlayMTU = 1400
	_, d := f.hold(time.Unix(1001, 0), in, decide(in))
	if d.podMTU != 1340 ||
		slices.ContainsFunc(d.notes, func(n string) bool { return strings.Contains(n, "closed") }) {
		t.Errorf("MTU %d, notes %q", d.podMTU, d.notes)
	}
}
