package known

import (
	"errors"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kubeveil/kubeveil/internal/errtest"
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

// Two operators may ask at the same time. The second gets an answer, unless the first takes long.
func TestQuestionWaitsForAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := New(func() (*View, error) { return &View{}, nil })
		_, done, err := j.look()
		errtest.Must(t, err)

		time.AfterFunc(time.Second, done)
		if _, done, err = j.look(); err != nil {
			t.Fatalf("after the end of the first question: %v", err)
		}
		defer done()
		if _, _, err = j.look(); !errors.Is(err, errBusy) {
			t.Errorf("while another question is answered: %v", err)
		}
	})
}
