package frozen

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
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
}

// verbs are the verbs of veilctl, whose help is held too.
var verbs = []string{
	"status", "peers", "mtu", "guard", "leakcheck", "host", "cleanup",
	"service list", "service show", "service trace", "policy list", "policy show",
	"policy trace", "policy wait",
	"check", "connectivity", "bench", "bench storage", "sysdump",
	"volume list", "volume show", "volume rewrap", "volume recover", "volume destroy", "version",
}

// TestCommandLines holds help texts, complaints about a wrong command line and
// exit statuses.
func TestCommandLines(t *testing.T) {
	bin := t.TempDir()
	build := exec.Command("go", "build", "-o", bin, deptest.Module+"/cmd/...",
		deptest.Module+"/plugins/...")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %v\n%s", build, err, out)
	}

	for _, name := range slices.Sorted(maps.Keys(calls)) {
		list := calls[name]
		if name == "veilctl" {
			for _, verb := range verbs {
				list = append(list, append(strings.Fields(verb), "-h"))
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
