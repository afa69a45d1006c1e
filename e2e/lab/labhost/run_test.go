package labhost

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/kubeveil/kubeveil/internal/errtest"
)

// prune removes old runs. It does not remove folders with names that NewRun does not make.
func TestPrune(t *testing.T) {
	base := t.TempDir()
	dead := func(second, pid int) string {
		return fmt.Sprintf("20260101-0000%02d.000-%d", second, pid)
	}
	const pid = 1 << 30 // beyond any pid_max
	here := fmt.Sprintf("20250101-000000.000-%d", os.Getpid())
	foreign := []string{"20250101-000000.000", "notes", "20250101-000000.000-1x"}

	kept := []string{dead(2, pid+2), dead(3, pid+3), dead(3, pid+3) + "-2", dead(4, pid+3), here}
	for _, name := range slices.Concat([]string{dead(0, pid), dead(1, pid+1),
		dead(1, pid+1) + "-2"}, kept, foreign) {
		errtest.Must(t, os.MkdirAll(filepath.Join(base, name, "node-1"), 0o755))
	}

	for range 2 {
		errtest.Must(t, prune(base, 2))
	}

	entries, err := os.ReadDir(base)
	errtest.Must(t, err)

	var got []string
	for _, e := range entries {
		got = append(got, e.Name())
	}

	want := append(kept, foreign...)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("left are %q, want %q", got, want)
	}
}

// Runs that begin in the same millisecond get different folders.
func TestNewRun(t *testing.T) {
	base := filepath.Join(t.TempDir(), "lab")
	seen := map[string]bool{}
	for range 50 {
		dir, err := NewRun(base)
		errtest.Must(t, err)
		if seen[dir] || !runName.MatchString(filepath.Base(dir)) {
			t.Fatalf("run %s, after %v", dir, seen)
		}
		seen[dir] = true
	}
	if len(seen) != 50 {
		t.Errorf("%d folders", len(seen))
	}
}
