package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
)

// Programs of this architecture are at most 5 % above their sizes of the last release. They are
// linked as hack/image links them, so that growth is seen before a release.
func TestProgramsHaveTheirSizes(t *testing.T) {
	dir, programs := t.TempDir(), []string{"veil-wg", "veilctl", "veild"}
	args := []string{"build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w", "-o", dir + "/"}
	for _, p := range programs {
		args = append(args, "../../cmd/"+p)
	}
	c := exec.CommandContext(t.Context(), nettest.NeedProgram(t, "go"), args...)
	c.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-mod=readonly")
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("%v: %v\n%s", c, err, out)
	}

	sizes := map[string]int64{}
	for _, p := range programs {
		info, err := os.Stat(filepath.Join(dir, p))
		errtest.Must(t, err)
		sizes[p+"-linux-"+runtime.GOARCH] = info.Size()
	}
	t.Log(sizes)
	errtest.Check(t, checkSizes(committedSizes, sizes))
}
