package frozen

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/kubeveil/kubeveil/hack/deptest"
	"github.com/kubeveil/kubeveil/internal/golden"
)

// calls are the command lines of each program whose exit status and output are
// held: none of them looks at the machine.
var calls = map[string][][]string{
	"veild": {
		{"-h"}, {"nonsense"}, {"-nonsense"}, {"run", "extra"}, {"install-cni"},
		{"-config", "/nonexistent"},
	},
	"veil-wg": {{"-h"}, {"nonsense"}, {"-nonsense"}, {"device"}},
	"veil-csi": {{"-h"}, {"cleanup", "-h"}, {"nonsense"}, {"-nonsense"}, {"make-key"},
		{"-store", "nonsense"}},
	"veilctl": {
		{}, {"-h"}, {"help"}, {"nonsense"}, {"status", "--nonsense"}, {"status", "extra"},
		{"volume"}, {"service"}, {"policy"}, {"volume", "lits"}, {"stauts"}, {"install", "-check"},
		{"status", "-kubeconfig", "/x"},
		{"peers", "-o", "xml"}, {"peers", "--socket", "/nonexistent"},
	},
	"veil-tools": {{"-h"}, {}, {"nonsense"}, {"send", "-nonsense"}},
}

// verbs returns the commands of each program whose help is held too.
var verbs = map[string]func(t *testing.T, program string) [][]string{
	"veilctl": cobraTree, "veil-tools": toolVerbs,
}

// TestCommandLines holds help texts, complaints about a wrong command line and
// exit statuses.
func TestCommandLines(t *testing.T) {
	bin := t.TempDir()
	// As hack/build.sh does, whose packages are in Go's cache, but without what debuggers need.
	build := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w", "-o", bin,
		deptest.Module+"/cmd/...", deptest.Module+"/plugins/...")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %v\n%s", build, err, out)
	}

	for _, name := range slices.Sorted(maps.Keys(calls)) {
		list := calls[name]
		if verbs[name] != nil {
			for _, verb := range verbs[name](t, filepath.Join(bin, name)) {
				list = append(list, append(verb, "-h"))
			}
		}

		var b strings.Builder
		for _, args := range list {
			transcribe(t, &b, exec.Command(filepath.Join(bin, name), args...))
		}
		golden.Check(t, "cli/"+name+".txt", b.String())
	}

	// A CNI plugin has no flags: its command line is the environment.
	var b strings.Builder
	transcribe(t, &b, exec.Command(filepath.Join(bin, "veil")))
	for _, command := range []string{"VERSION", "NONSENSE", "ADD"} {
		cmd := exec.Command(filepath.Join(bin, "veil"))
		cmd.Env = []string{"CNI_COMMAND=" + command}
		cmd.Stdin = strings.NewReader(`{"cniVersion":"1.1.0","name":"kubeveil","type":"veil"}`)
		transcribe(t, &b, cmd)
	}
	golden.Check(t, "cli/veil.txt", b.String())
}

// cobraTree returns all commands of a program of package cobra that are not hidden, parents before
// their children, in the order in which the program lists them for completion.
func cobraTree(t *testing.T, program string) [][]string {
	t.Helper()
	var all [][]string
	var walk func(parent []string)
	walk = func(parent []string) {
		help := output(t, program, append(slices.Clone(parent), "-h")...)
		path := strings.Join(append([]string{filepath.Base(program)}, parent...), " ")
		if !strings.Contains(help, "\n  "+path+" [command]\n") {
			return // its arguments would be completed, not commands
		}
		args := append(append([]string{"__complete"}, parent...), "")
		for line := range strings.Lines(output(t, program, args...)) {
			name, _, described := strings.Cut(line, "\t")
			if !described {
				continue // the last line is for the shell
			}
			child := append(slices.Clone(parent), name)
			all = append(all, child)
			walk(child)
		}
	}

	walk(nil)
	return all
}

// withoutFlags are the verbs of veil-tools without flags: with -h they would run.
var withoutFlags = []string{"agent", "obey", "pause", "pod", "session"}

// toolVerbs returns the verbs of veil-tools that have flags.
func toolVerbs(t *testing.T, program string) [][]string {
	t.Helper()
	var all [][]string
	for line := range strings.Lines(output(t, program, "-h")) {
		verb, ok := strings.CutPrefix(line, "  ")
		if name := strings.Fields(verb); ok && !slices.Contains(withoutFlags, name[0]) {
			all = append(all, name[:1])
		}
	}
	return all
}

// output runs a program and returns what it prints.
func output(t *testing.T, program string, args ...string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), program, args...).Output()
	if err != nil {
		t.Fatalf("%s %q: %v", program, args, err)
	}
	return string(out)
}

// transcribe runs cmd and appends the command line, the exit status and both
// outputs.
func transcribe(t *testing.T, b *strings.Builder, cmd *exec.Cmd) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatalf("%v: %v", cmd, err)
	}

	line := append(cmd.Env, filepath.Base(cmd.Path))
	line = append(line, cmd.Args[1:]...)
	fmt.Fprintf(b, "$ %s\nexit status %d\n", strings.Join(line, " "), cmd.ProcessState.ExitCode())
	for _, output := range []struct{ name, text string }{{"stdout", stdout.String()},
		{"stderr", stderr.String()}} {
		if output.text == "" {
			continue
		}
		fmt.Fprintf(b, "-- %s --\n%s", output.name, output.text)
		if !strings.HasSuffix(output.text, "\n") {
			b.WriteString("\n")
		}
		if slices.Contains(line, "-h") {
			checkWidth(t, line, output.text)
		}
	}
	b.WriteString("\n")
}

// checkWidth fails for a line of a help text that is wider than 100 columns.
func checkWidth(t *testing.T, command []string, text string) {
	t.Helper()
	for line := range strings.SplitSeq(text, "\n") {
		line = strings.ReplaceAll(line, "\t", "    ") // package flag writes one, in column 4
		if width := utf8.RuneCountInString(line); width > 100 {
			t.Errorf("%s: a line of %d columns, want at most 100: %s",
				strings.Join(command, " "), width, line)
		}
	}
}
