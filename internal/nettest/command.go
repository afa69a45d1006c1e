package nettest

import (
	"fmt"
	"os/exec"
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
