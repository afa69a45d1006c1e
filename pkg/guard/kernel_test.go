package guard

import (
	"fmt"
	"testing"

	"github.com/kubeveil/kubeveil/pkg/nettest"
)

const pinDir = "/sys/fs/bpf/kubeveil"

// bothHooks runs a test with tcx and with clsact.
func bothHooks(t *testing.T, fn func(t *testing.T, hk hooks)) {
	for _, hk := range []hooks{tcx{}, clsact{}} {
		t.Run(fmt.Sprintf("%T", hk), func(t *testing.T) { fn(t, hk) })
	}
}

// open opens a guard that attaches in the given way.
func open(hk hooks) (*Guard, error) {
	g, err := Open(pinDir, quiet())
	if g != nil {
		g.hooks = hk
	}
	return g, err
}

func TestApplyTwiceChangesNothing(t *testing.T) {
	bothHooks(t, func(t *testing.T, hk hooks) {
		host := nettest.NewHost(t)
		other := nettest.NewNS(t)
		nettest.Veth(t, nettest.End{NS: host.NS, Name: "u0"}, nettest.End{NS: other, Name: "u0"})
		host.Run(t, func() error {
			g, err := open(hk)
			if err != nil {
				return err
			}
			defer g.Close()
			ops, err := g.Apply(lab())
			if err != nil {
				return err
			}
			t.Log(ops)
			if len(ops) == 0 {
				return fmt.Errorf("first Apply changed nothing")
			}
			again, err := g.Apply(lab())
			if err != nil {
				return err
			}
			if len(again) != 0 {
				return fmt.Errorf("second Apply changed: %v", again)
			}
			return nil
		})
	})
}
