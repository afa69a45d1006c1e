package main

import (
	"bytes"
	"errors"
	"io"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/kubeveil/kubeveil/cmd/veilctl/internal/verb"
	"github.com/kubeveil/kubeveil/cmd/veilctl/internal/verb/verbtest"
	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/filetest"
	"github.com/kubeveil/kubeveil/pkg/telemetry"
)

// everyVerb calls f for each verb below cmd that is not hidden.
func everyVerb(cmd *cobra.Command, f func(*cobra.Command)) {
	for _, v := range cmd.Commands() {
		if v.Hidden {
			continue
		}
		f(v)
		everyVerb(v, f)
	}
}

func TestEveryVerbExplainsItselfWithExamples(t *testing.T) {
	everyVerb(newVeilctl(), func(v *cobra.Command) {
		path := strings.TrimPrefix(v.CommandPath(), "veilctl ")
		var out bytes.Buffer
		if err := run(t.Context(), append(strings.Fields(path), "-h"), &out,
			io.Discard); err != nil {
			t.Errorf("%s -h: %v", path, err)
		}

		if first := v.Short[:1]; first != strings.ToUpper(first) {
			t.Errorf("%s: %q is not an imperative that begins a sentence", path, v.Short)
		}
		for _, w := range []string{v.Short, "Usage:\n  " + v.CommandPath(),
			"Examples:\n  ", "  " + v.CommandPath()} {
			if !strings.Contains(out.String(), w) {
				t.Errorf("%s -h does not say %q:\n%s", path, w, &out)
			}
		}
	})
}

func TestVerbsForAClusterTakeTheSameFlags(t *testing.T) {
	everyVerb(newVeilctl(), func(v *cobra.Command) {
		if (v.Flag("kubeconfig") == nil) != (v.Flag("context") == nil) {
			t.Errorf("%s has one of --kubeconfig and --context", v.CommandPath())
		}
		group := v.GroupID
		if v.Parent().HasParent() {
			group = v.Parent().GroupID
		}
		if !v.HasSubCommands() && group == "cluster" && v.Flag("kubeconfig") == nil {
			t.Errorf("%s has no --kubeconfig", v.CommandPath())
		}
	})
}

func TestCompletionScripts(t *testing.T) {
	for _, shell := range []string{"bash", "zsh", "fish"} {
		var out bytes.Buffer
		if err := run(t.Context(), []string{"completion", shell}, &out, io.Discard); err != nil {
			t.Errorf("%s: %v", shell, err)
		}
		if !strings.Contains(out.String(), shell) || !strings.Contains(out.String(), "__complete") {
			t.Errorf("%s: no completion script:\n%.200s", shell, &out)
		}
	}
}

func TestCompletion(t *testing.T) {
	kubeconfig := filepath.Join(t.TempDir(), "config")
	filetest.Write(t, kubeconfig, []byte("contexts: [{name: blue}, {name: green}]"),
		0o600)
	for name, tt := range map[string]struct{ args, want string }{
		"verbs":             {"st", "status\t"},
		"verbs of a thing":  {"volume re", "recover\t"},
		"flags":             {"status --ku", "--kubeconfig\t"},
		"formats":           {"peers -o ", "table\njson\n"},
		"contexts":          {"check --kubeconfig " + kubeconfig + " --context ", "green\n"},
		"no file to choose": {"peers ", ":4\n"},
	} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			args := append([]string{"__complete"}, strings.Split(tt.args, " ")...)
			errtest.Must(t, run(t.Context(), args, &out, io.Discard))
			if !strings.Contains(out.String(), tt.want) {
				t.Errorf("completed to %q, want %q", &out, tt.want)
			}
		})
	}
}

// A wrong command line ends with status 2, and the error says what to write instead.
func TestWrongCommandLines(t *testing.T) {
	for name, tt := range map[string]struct{ args, want string }{
		"a mistyped verb":            {"stauts", "did you mean status?"},
		"a mistyped verb of a thing": {"volume lits", "did you mean list?"},
		"nothing like a verb":        {"nonsense", `unknown verb "nonsense": see veilctl -h`},
		"nothing like a verb of a thing": {"policy nonsense",
			`unknown verb "nonsense": write one of list, show, `},
		"no verb of a thing": {"volume", "One of list, show"},
		"an unknown flag":    {"status --nonsense", "unknown flag: --nonsense: see veilctl status -h"},
		"one dash":           {"status -kubeconfig /x", "-kubeconfig: write --kubeconfig"},
		"one dash, help by a letter": {"volume recover -header=x pvc",
			"-header=x: write --header=x"},
		"one dash, -o by a letter": {"service trace -outside 192.0.2.1:80", "write --outside"},
		"one dash, help":           {"status -help", "write --help"},
		"an unknown format":        {"version -o yaml", "write table or json"},
	} {
		t.Run(name, func(t *testing.T) {
			err := run(t.Context(), strings.Fields(tt.args), io.Discard, io.Discard)
			if !errors.Is(err, verb.ErrUsage) || verb.ExitStatus(err) != verb.ExitUsage {
				t.Errorf("%v is no error of the command line", err)
			}
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("%v, want %q", err, tt.want)
			}
		})
	}
}

func TestExitStatus(t *testing.T) {
	s := telemetry.Status{Node: "node-1", Guard: telemetry.Guard{InForce: true}}
	good := verbtest.Daemon(t, s, true, nil)
	notReady := verbtest.Daemon(t, s, false, nil)
	s.Problems, s.Guard.InForce = []string{"it does not work"}, false
	bad := verbtest.Daemon(t, s, true, nil)
	tests := []struct {
		name string
		args []string
		want int
	}{
		{"no command shows the usage", nil, verb.ExitOK},
		{"a node that is well", []string{"status", "--socket", good}, verb.ExitOK},
		{"a node that is not ready", []string{"status", "--socket", notReady}, verb.ExitWrong},
		{"a node with a problem", []string{"status", "--socket", bad}, verb.ExitWrong},
		{"a guard that is not in force", []string{"guard", "--socket", bad}, verb.ExitWrong},
		{"no daemon", []string{"status", "--socket", good + "x"}, verb.ExitNoDaemon},
		{"an unknown command", []string{"stats"}, verb.ExitUsage},
		{"an unknown flag", []string{"status", "-x"}, verb.ExitUsage},
		{"an unknown format", []string{"status", "-o", "yaml"}, verb.ExitUsage},
		{"an argument too many", []string{"status", "now"}, verb.ExitUsage},
		{"a leak check of no length", []string{"leakcheck", "--for", "0s"}, verb.ExitUsage},
	}

	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			err := run(t.Context(), tt.args, &bytes.Buffer{}, io.Discard)
			if got := verb.ExitStatus(err); got != tt.want {
				t.Errorf("exit status %d, want %d (%v)", got, tt.want, err)
			}
			if errors.Is(err, verb.ErrUsage) && err.Error() == verb.ErrUsage.Error() {
				t.Error("it does not say what is wrong")
			}
		})
	}
}
