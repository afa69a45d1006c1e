package nettest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// BuildTool builds package pkg of the module hack/tools/NAME below root, and returns the path of
// the program. It keeps the program in out/tools, so that the next process links it only after a
// change. It skips the test if the modules of pkg cannot be fetched.
func BuildTool(t testing.TB, root, name, pkg string, flags ...string) string {
	t.Helper()
	goTool := NeedProgram(t, "go")
	run := func(verb string, args ...string) ([]byte, error) {
		c := exec.CommandContext(t.Context(), goTool,
			append(append([]string{verb}, flags...), append(args, pkg)...)...)
		c.Dir = filepath.Join(root, "hack/tools", name)
		c.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=")
		return c.CombinedOutput()
	}

	// What lists the packages also fetches their modules, and compiles nothing.
	if out, err := run("list", "-deps"); err != nil {
		Skip(t, NoModule, fmt.Sprintf("go list: %v: %s", err, out))
	}
	path, err := filepath.Abs(filepath.Join(root, "out/tools", name))
	if err == nil {
		err = os.MkdirAll(filepath.Dir(path), 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	if out, err := run("build", "-trimpath", "-buildvcs=false", "-o", path); err != nil {
		t.Fatalf("build hack/tools/%s: %v\n%s", name, err, out)
	}
	return path
}
