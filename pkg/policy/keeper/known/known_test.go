package known

import (
	"net/netip"
	"testing"

	"github.com/kubeveil/kubeveil/pkg/policy/planner"
	"github.com/kubeveil/kubeveil/pkg/policy/trial"
)

// An address in a pod range is marked as unknown if no known pod has it.
func TestUnknownPodsAreMarked(t *testing.T) {
	p := planner.New("here")
	p.SetRanges([]netip.Prefix{netip.MustParsePrefix("198.18.2.0/24")})
	v := &View{Planner: p, Nodes: map[netip.Addr]string{netip.MustParseAddr("192.0.2.2"): "there"}}
	name := v.namer(p.Plan())
	for text, want := range map[string]trial.End{
		"198.18.2.77": {Name: "198.18.2.77", Unknown: true},
		"192.0.2.2":   {Name: "node there"},
		"203.0.113.1": {Name: "203.0.113.1"},
	} {
		if got := name(netip.MustParseAddr(text)); got != want {
			t.Errorf("name of %s: %+v, want %+v", text, got, want)
		}
	}
}
