package kernel

import (
	"context"
	"log/slog"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kubeveil/kubeveil/e2e/vm"
	"github.com/kubeveil/kubeveil/pkg/nettest"
)

const (
	// vmEnv turns on tests that start machines.
	vmEnv = "KUBEVEIL_VM"
	// runEnv says which tests to run there, as go test -run does; empty is all.
	runEnv = "KUBEVEIL_KERNEL_RUN"
)

// packages are those whose tests load programs into the kernel and need no file of the tree.
var packages = []string{"pkg/service/table", "pkg/guard", "pkg/hostnet"}

// TestKernel runs the tests of packages on a machine without Kubernetes. What they skip there is in its output.
func TestKernel(t *testing.T) {
	nettest.NeedRoot(t)
	if os.Getenv(vmEnv) == "" {
		nettest.Skip(t, nettest.Short, "set "+vmEnv+"=1 to start virtual machines")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Minute)
	defer cancel()
	c, err := vm.New(ctx, vm.Options{Nodes: 1, Bare: true, Log: slog.New(slog.NewTextHandler(t.Output(), nil))})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	m := c.Machines[0]
	for _, pkg := range packages {
		t.Run(path.Base(pkg), func(t *testing.T) {
			binary := filepath.Join(t.TempDir(), "tests")
			build := exec.CommandContext(ctx, "go", "test", "-c", "-vet=off", "-o", binary, "../../"+pkg)
			build.Env = append(os.Environ(), "CGO_ENABLED=0")
			if out, err := build.CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			if err := m.PutFile(ctx, "/root/tests", binary); err != nil {
				t.Fatal(err)
			}
			out, err := m.Exec(ctx, "cd /root && chmod +x tests && uname -r && ./tests -test.v -test.timeout 10m -test.run '"+os.Getenv(runEnv)+"' 2>&1; echo status $?; dmesg | tail -5")
			t.Logf("%s", out)
			if err != nil || !strings.Contains(string(out), "\nPASS\nstatus 0\n") {
				t.Errorf("tests on the machine: %v", err)
			}
		})
	}
}
