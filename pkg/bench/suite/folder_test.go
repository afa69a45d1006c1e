package suite

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"testing"

	"github.com/kubeveil/kubeveil/internal/errtest"
)

func TestWhatTheDeadLeftIsFound(t *testing.T) {
	const own = Prefix("kubeveil-bench-test-")
	root := t.TempDir()
	dead := exec.Command("true")
	errtest.Must(t, dead.Run())
	left := filepath.Join(root, string(own)+strconv.Itoa(dead.Process.Pid))
	for _, dir := range []string{left, filepath.Join(root, own.Name()),
		filepath.Join(root, string(own)+"other"), filepath.Join(root, "else")} {
		errtest.Must(t, os.Mkdir(dir, 0o755))
	}
	if got := own.OfDead(root); !slices.Equal(got, []string{left}) {
		t.Errorf("%v, want %s alone", got, left)
	}
}
