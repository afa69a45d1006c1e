package network_test

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/kubeveil/kubeveil/e2e/lab"
	"github.com/kubeveil/kubeveil/e2e/node/nodetest"
	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/filetest"
	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/telemetry"
)

// anotherConflist checks that a node refuses pods while a CNI configuration of another plugin takes
// precedence over Kubeveil's. A configuration that delegates to Kubeveil's is accepted. Running
// pods are not affected.
func anotherConflist(ctx context.Context, t *testing.T, l *lab.Lab, a, b *lab.Pod) {
	n := l.Nodes()[0]
	dir := filepath.Join(n.Disk(), "etc/cni/net.d")
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		filetest.Write(t, path, []byte(text), 0o644)
		return path
	}

	delegating := write("00-multus.conf", `{"type":"multus-shim"}`)
	other := write("00-other.conflist", `{"plugins":[{"type":"bridge"}]}`)
	s := waitProblem(ctx, t, n, "00-other.conflist (bridge)")
	if len(s.Problems) != 1 || s.Ready {
		t.Errorf("ready %t, problems %q, want the one", s.Ready, s.Problems)
	}
	if _, err := os.Stat(n.Path(abi.ReadyFile)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the marker is there: %v", err)
	}

	nodetest.Meet(ctx, t, a, b)
	errtest.Must(t, os.Remove(other))

	nodetest.WaitStatus(ctx, t, n, 20*time.Second, func(s telemetry.Status) error {
		if !s.Ready || len(s.Problems) > 0 {
			return errors.New("it is still shut")
		}
		return nil
	})

	// The lab's own runtime would take it, too.
	errtest.Must(t, os.Remove(delegating))
	errtest.Check(t, n.WaitReady(ctx))
}
