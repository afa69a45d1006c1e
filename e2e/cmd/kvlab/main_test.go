package main

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/kubeveil/kubeveil/e2e/cmd/kvlab/internal/program"
	"github.com/kubeveil/kubeveil/internal/nettest"
)

func TestMain(m *testing.M) { os.Exit(nettest.Run(m)) }

// Each verb exists once, describes itself in a line, and its usage has the name by which it is
// called.
func TestVerbs(t *testing.T) {
	var visit func(cmd *cobra.Command)
	visit = func(cmd *cobra.Command) {
		if cmd.Short == "" {
			t.Errorf("%s says not what it does", cmd.CommandPath())
		}
		seen := map[string]bool{}
		for _, sub := range cmd.Commands() {
			if seen[sub.Name()] {
				t.Errorf("%s is there twice", sub.CommandPath())
			}
			seen[sub.Name()] = true
			visit(sub)
		}
	}
	visit(root())

	for _, path := range []string{
		"up", "ssh", "kubectl", "down", "demo", "demo storage", "conformance", "gates",
		"test network", "test storage", "bench api", "bench cluster", "bench engine", "bench lab",
		"bench policy", "bench scale", "bench service", "bench site",
		"bench storage",
	} {
		cmd, rest, err := root().Find(strings.Fields(path))
		if err != nil || len(rest) > 0 || cmd.CommandPath() != "kvlab "+path {
			t.Errorf("kvlab %s: %s, %q left, %v", path, cmd.CommandPath(), rest, err)
		}
	}
}

// A command line that is wrong is refused before anything is done.
func TestWrongCommandLines(t *testing.T) {
	for args, want := range map[string]string{
		"nonsense": "unknown command", "bench": "a verb is missing",
		"gates --nonsense": "unknown flag: --nonsense", "gates -in x": "-in: write --in",
		"bench lab --only nonsense":     "see kvlab bench lab -h",
		"bench policy --parts nonsense": "see kvlab bench policy -h",
		"bench policy --rounds 0":       "see kvlab bench policy -h",
		"bench api --rates 0":           "see kvlab bench api -h",
		"bench scale --sizes 0":         "see kvlab bench scale -h",
		"bench site --connections 0":    "see kvlab bench site -h",
		"bench api --parts nonsense":    "see kvlab bench api -h",
		"up --nodes 9":                  "--nodes 9: write 1 to 4 machines",
		"up -nodes 2":                   "-nodes: write --nodes",
	} {
		cmd := root()
		var out bytes.Buffer
		cmd.SetOut(&out)
		cmd.SetErr(&out)
		err := program.Execute(cmd, strings.Fields(args))
		if got := fmt.Sprint(&out, err); err == nil || !strings.Contains(got, want) {
			t.Errorf("kvlab %s: %s, want %q", args, got, want)
		}
	}
}

// A shell completes the flags of verbs of both levels.
func TestFlagsAreCompleted(t *testing.T) {
	for args, want := range map[string]string{
		"up --": "--nodes", "bench lab --": "--only", "test network --": "--core",
		"ssh --": "--dir", "conformance --service": "--service-proxy",
	} {
		cmd := root()
		var out bytes.Buffer
		cmd.SetOut(&out)
		cmd.SetErr(&out)
		cmd.SetArgs(append([]string{cobra.ShellCompRequestCmd}, strings.Fields(args)...))
		if err := cmd.Execute(); err != nil || !strings.Contains(out.String(), want) {
			t.Errorf("kvlab %s: %v, %s; want %s", args, err, &out, want)
		}
	}
}

// The help of a verb goes to standard output, and its first line is an imperative.
func TestHelp(t *testing.T) {
	var visit func(cmd *cobra.Command, path []string)
	visit = func(cmd *cobra.Command, path []string) {
		for _, sub := range cmd.Commands() {
			visit(sub, append(slices.Clone(path), sub.Name()))
		}
		if cmd.DisableFlagParsing {
			return // another program reads its flags
		}

		fresh := root()
		var out, problems bytes.Buffer
		fresh.SetOut(&out)
		fresh.SetErr(&problems)
		err := program.Execute(fresh, append(path, "-h"))
		if err != nil || out.Len() == 0 || problems.Len() > 0 {
			t.Errorf("kvlab %s -h: %v, %q, %q", strings.Join(path, " "), err, &out, &problems)
		}
		call := "kvlab " + strings.Join(path, " ")
		if !cmd.Hidden && !strings.Contains(out.String(), "Usage: "+call) &&
			!strings.Contains(out.String(), "Usage:\n  "+call) {
			t.Errorf("the help of %s does not have its usage:\n%s", call, &out)
		}
		first, _ := utf8.DecodeRuneInString(out.String())
		if !unicode.IsUpper(first) || cmd.Short != "" && !unicode.IsUpper(rune(cmd.Short[0])) {
			t.Errorf("kvlab %s begins with %q: %s", strings.Join(path, " "), first, cmd.Short)
		}
	}
	visit(root(), nil)
}
