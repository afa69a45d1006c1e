package suite

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
)

func TestWhatTheDeadLeftIsFound(t *testing.T) {
	const own = Prefix("kubeveil-bench-test-")
	root := t.TempDir()
	dead := exec.Command("true")
	if err := dead.Run(); err != nil {
		t.Fatal(err)
	}
	left := filepath.Join(root, string(own)+strconv.Itoa(dead.Process.Pid))
	for _, dir := range []string{left, filepath.Join(root, own.Name()),
		filepath.Join(root, string(own)+"other"), filepath.Join(root, "else")} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if got := own.OfDead(root); !slices.Equal(got, []string{left}) {
		t.Errorf("%v, want %s alone", got, left)
	}
}
