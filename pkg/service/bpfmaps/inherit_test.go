package bpfmaps

import (
	"slices"
	"testing"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/service"
	"github.com/kubeveil/kubeveil/pkg/service/planner"
	"github.com/kubeveil/kubeveil/pkg/service/probe"
)

// A table of another size gets the content in force before programs read it, without a list of
// services. A process that dies before that changes nothing.
func TestAnotherSizeTakesOverWhatIsInForce(t *testing.T) {
	for name, limits := range map[string]service.Limits{
		"larger":  {Frontends: 512, BackendSlots: 8192, SourceRanges: 512},
		"smaller": {Frontends: 64, BackendSlots: 512, SourceRanges: 16},
	} {
		t.Run(name, func(t *testing.T) {
			cgroup, c := nettest.NewCgroup(t), config(t)
			n := start(t, c, lab)
			n.attach(t, cgroup)
			h := newHands(t, cgroup)
			udp, sticky := h.dial("udp", "198.18.0.1:53"), h.dial("tcp", "198.18.0.2:80").Answer
			h.do(order{Do: "load", Net: "tcp", To: "198.18.0.1:80"})
			was, err := n.State()
			errtest.Must(t, err)

			c.Limits = limits
			for range 3 {
				table := opened(t, c)
				s, err := table.State()
				if err != nil || table.Fresh() || len(s.Frontends) != len(was.Frontends) ||
					len(s.SourceRanges) != len(was.SourceRanges) {
					t.Errorf("taken over are %d frontends and %d sources, %v; fresh: %t",
						len(s.Frontends), len(s.SourceRanges), err, table.Fresh())
				}
				errtest.Must(t, table.Close())
			}

			table := opened(t, c)
			n = startOn(t, table, func(p *planner.Planner) { p.Hold(true) })
			if changed := n.attach(t, cgroup); len(changed) == 0 {
				t.Error("the new table was attached before")
			}

			for _, to := range []string{"198.18.0.1", "[fd42::1]"} {
				if r := h.dial("tcp", to+":80"); !slices.Contains(backends, r.Answer) {
					t.Errorf("connection to %s: %+v", to, r)
				}
			}

			if got := h.dial("tcp", "198.18.0.2:80").Answer; got != sticky {
				t.Errorf("affinity was to %s and is to %s", sticky, got)
			}
			if got := h.ask(udp.ID); got != udp.Answer {
				t.Errorf("datagrams went to %s and go to %s", udp.Answer, got)
			}
			if r := h.do(order{Do: "dial", Net: "tcp", To: "198.18.0.3:80"}); !r.Refused {
				t.Errorf("without backends: %+v", r)
			}
			if load := h.do(order{Do: "stop"}); load.Err != "" || load.Count == 0 {
				t.Errorf("meanwhile: %+v", load)
			}

			again := opened(t, c)
			defer again.Close()
			if same, err := sameMap(again.maps[mapFrontends], n.maps[mapFrontends]); err != nil ||
				!same {
				t.Errorf("the table that is in force now is made anew: %v", err)
			}
		})
	}
}

// A table of another layout cannot be taken over, and stays in force.
func TestAnotherLayoutIsLeftInForce(t *testing.T) {
	cgroup, c := nettest.NewCgroup(t), config(t)
	n := start(t, c, lab)
	n.attach(t, cgroup)
	h := newHands(t, cgroup)
	all, err := specs(probe.Features{SetRetval: true})
	errtest.Must(t, err)
	frontends := all[0].Maps[mapFrontends]
	frontends.ValueSize, frontends.Key, frontends.Value = frontends.ValueSize+8, nil, nil
	next, err := open(c, probe.Features{SetRetval: true}, all)
	errtest.Must(t, err)
	defer next.Close()
	if !next.Fresh() {
		t.Error("a table of another layout was taken over")
	}
	h.dial("tcp", "198.18.0.1:80")

	back := opened(t, c)
	defer back.Close()
	if s, err := back.State(); err != nil || back.Fresh() || len(s.Frontends) == 0 {
		t.Errorf("back at the old layout: %d frontends, %v; fresh: %t", len(s.Frontends), err,
			back.Fresh())
	}
}
