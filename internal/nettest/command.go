package nettest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// Output runs a program in the namespaces of the calling thread and returns its standard output and
// standard error. The text of an error has the command and its output.
func Output(name string, args ...string) (string, error) { return output("", name, args) }

// Command runs a program like Output, but returns only the error.
func Command(name string, args ...string) error { return Feed("", name, args...) }

// Feed is like Command for a program that reads input from standard input, such as ip -batch -.
func Feed(input, name string, args ...string) error {
	_, err := output(input, name, args)
	return err
}

func output(input, name string, args []string) (string, error) {
	cmd := exec.Command(name, args...)
	cmd.Stdin = strings.NewReader(input)
	out, err := cmd.CombinedOutput()
	if err != nil {
		err = fmt.Errorf("%s: %w: %s", cmd, err, out)
	}
	return string(out), err
}

// Exec runs a program in the namespace and returns its standard output and standard error. An error
// ends the test.
func (n *NS) Exec(t testing.TB, name string, args ...string) (out string) {
	t.Helper()
	n.Run(t, func() (err error) {
		out, err = Output(name, args...)
		return err
	})
	return out
}

// Exec runs a program in both namespaces, as NS.Exec does.
func (h *Host) Exec(t testing.TB, name string, args ...string) (out string) {
	t.Helper()
	h.Run(t, func() (err error) {
		out, err = Output(name, args...)
		return err
	})
	return out
}

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
