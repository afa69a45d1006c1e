package main

import (
	"bytes"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/golden"
)

// calls are the command lines of each program whose exit status and output are compared with golden
// files. Their output does not depend on the machine. Help texts of docs/reference are not compared
// here.
var calls = map[string][][]string{
	"veild": {
		{"nonsense"}, {"--nonsense"}, {"run", "extra"}, {"install-cni"}, {"-config", "/x"},
		{"--config", "/nonexistent"},
	},
	"veil-wg":  {{"nonsense"}, {"--nonsense"}, {"-dir", "/x"}, {"device"}, {"--log-format", "xml"}},
	"veil-csi": {{"nonsense"}, {"--nonsense"}, {"make-key"}, {"--store", "nonsense"}},
	"veilctl": {
		{}, {"help"}, {"nonsense"}, {"status", "--nonsense"}, {"status", "extra"},
		{"volume"}, {"service"}, {"policy"}, {"volume", "lits"}, {"stauts"},
		{"status", "-kubeconfig", "/x"},
		{"peers", "-o", "xml"}, {"peers", "--socket", "/nonexistent"},
	},
	"veil-site":  {{"nonsense"}, {"--nonsense"}, {"--config", "/nonexistent"}, {"-config", "/x"}},
	"veil-tools": {{}, {"nonsense"}, {"echo-send", "--nonsense"}},
}

// TestCommandLines compares the exit status and the output for each of calls with golden files.
func TestCommandLines(t *testing.T) {
	for name, list := range calls {
		t.Run(name, func(t *testing.T) {
			help, err := bin.output(name, "-h")
			errtest.Must(t, err)
			var b strings.Builder
			for _, args := range list {
				transcribe(t, &b, bin.command(name, args...), help)
			}
			golden.Check(t, "cli/"+name+".txt", b.String())
		})
	}

	// A CNI plugin has no flags: its command line is the environment.
	t.Run("veil", func(t *testing.T) {
		var b strings.Builder
		transcribe(t, &b, bin.command("veil"), "")
		for _, command := range []string{"VERSION", "NONSENSE", "ADD"} {
			cmd := bin.command("veil")
			cmd.Env = []string{"CNI_COMMAND=" + command}
			cmd.Stdin = strings.NewReader(`{"cniVersion":"1.1.0","name":"kubeveil","type":"veil"}`)
			transcribe(t, &b, cmd, "")
		}
		golden.Check(t, "cli/veil.txt", b.String())
	})
}

// TestToolsHaveHelp tests the verbs of veil-tools, which no page of docs/reference has: help has
// status 0 and goes to standard output.
func TestToolsHaveHelp(t *testing.T) {
	help, err := bin.output("veil-tools", "-h")
	errtest.Must(t, err)
	verbs := [][]string{{"-h"}}
	for line := range strings.Lines(help) {
		verb, ok := strings.CutPrefix(line, "  ")
		if name := strings.Fields(verb); ok && len(name) > 0 {
			verbs = append(verbs, []string{name[0], "-h"})
		}
	}
	if len(verbs) < 20 {
		t.Errorf("only %d verbs in %s", len(verbs), help)
	}

	for _, args := range verbs {
		var stdout, stderr bytes.Buffer
		cmd := bin.command("veil-tools", args...)
		cmd.Stdout, cmd.Stderr = &stdout, &stderr
		if err := cmd.Run(); err != nil || stdout.Len() == 0 || stderr.Len() > 0 {
			t.Errorf("%v: %v and %q, want help on standard output", cmd, err, stderr.String())
		}
		checkWidth(t, cmd.String(), stdout.String())
	}
}

// transcribe runs cmd and appends the command line, the exit status and both outputs. help is the
// program's help text, which is replaced by its name.
func transcribe(t *testing.T, b *strings.Builder, cmd *exec.Cmd, help string) {
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
		if help != "" {
			output.text = strings.ReplaceAll(output.text, help, "(the text of -h)\n")
		}
		fmt.Fprintf(b, "-- %s --\n%s", output.name, output.text)
		if !strings.HasSuffix(output.text, "\n") {
			b.WriteString("\n")
		}
	}
	b.WriteString("\n")
}

// checkWidth fails for a line of a help text that is wider than 100 columns.
func checkWidth(t *testing.T, name, text string) {
	t.Helper()
	for line := range strings.SplitSeq(text, "\n") {
		if width := utf8.RuneCountInString(line); width > 100 {
			t.Errorf("%s: a line of %d columns, want at most 100: %s", name, width, line)
		}
	}
}
