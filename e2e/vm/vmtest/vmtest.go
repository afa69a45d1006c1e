// Package vmtest starts virtual machines for tests, and builds tests that run on machines. Only
// tests import it.
package vmtest

import (
	"context"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/kubeveil/kubeveil/e2e/vm"
	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
)

// enableEnv is the environment variable that enables tests that start machines. They take minutes.
// `make test-machines` sets the variable.
const enableEnv = "KUBEVEIL_VM"

// Need skips the test unless tests that start machines are enabled.
func Need(t *testing.T) {
	t.Helper()
	nettest.NeedRoot(t)
	if os.Getenv(enableEnv) == "" {
		nettest.Skip(t, nettest.Short, "set "+enableEnv+"=1 to start virtual machines")
	}
}

// New starts machines that end with the test, and logs to the output of the test.
func New(ctx context.Context, t *testing.T, opts vm.ClusterConfig) *vm.Cluster {
	t.Helper()
	opts.Log = slog.New(slog.NewTextHandler(t.Output(), nil))
	c, err := vm.New(ctx, opts)
	errtest.Must(t, err)
	t.Cleanup(func() {
		if _, err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

// Build builds the tests of a package as one static executable, and returns its path.
func Build(ctx context.Context, t *testing.T, pkg string) string {
	t.Helper()
	binary := filepath.Join(t.TempDir(), "tests")
	build := exec.CommandContext(ctx, "go", "test", "-c", "-vet=off", "-o", binary, pkg)
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return binary
}
