package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/internal/secret"
)

// asProgram is the environment variable that makes a process of the tests run as veil-csi.
const asProgram = "KUBEVEIL_TEST_VEIL_CSI"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
		fmt.Println("stacks are kept:", secret.StacksAreKept())
		return
	}
	os.Exit(m.Run())
}

// However veil-csi is started, the runtime does not copy stacks of a process that has keys.
func TestProcessWithKeysKeepsItsStacks(t *testing.T) {
	nettest.NeedRoot(t) // The process locks its memory.
	for _, c := range []struct {
		args []string
		want bool
	}{
		{[]string{"make-key", filepath.Join(t.TempDir(), "kek")}, true},
		{[]string{"version"}, false},
	} {
		cmd := exec.CommandContext(t.Context(), os.Args[0], c.args...)
		cmd.Env = append(os.Environ(), asProgram+"=1", "GODEBUG=madvdontneed=1")
		out, err := cmd.CombinedOutput()
		if want := fmt.Sprint("stacks are kept: ", c.want); err != nil ||
			!strings.Contains(string(out), want) {
			t.Errorf("%q: %v: %s, want %q", c.args, err, out, want)
		}
	}
}
