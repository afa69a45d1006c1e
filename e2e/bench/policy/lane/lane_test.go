package lane

import (
	"os"
	gort "runtime"
	"strings"
	"testing"

	"github.com/kubeveil/kubeveil/e2e/bench/bpffs"
	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/policy"
)

// New returns an error for a lane whose policies allow a connection that must be denied.
func TestLaneThatDeniesNothingIsRefused(t *testing.T) {
	nettest.NeedBPF(t)
	pins, err := bpffs.New()
	errtest.Must(t, err)
	defer pins.Close()
	all := judgePolicies(clientOf(), []policy.Policy{serverPolicy(0, policy.Rule{})}, 1)
	l, err := New("open", t.TempDir(), pins, all)
	if err == nil || !strings.Contains(err.Error(), "must deny was established") {
		t.Errorf("error %v, want that a denied connection was established", err)
	}
	errtest.Check(t, l.Close())
}

func init() { gort.LockOSThread() }

func TestMain(m *testing.M) { os.Exit(nettest.Run(m)) }
