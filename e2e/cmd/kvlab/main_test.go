package main

import (
	"bytes"
	"os"
	"strings"
	"testing"

	"github.com/spf13/cobra"

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
		"bench policy", "bench service", "bench storage",
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
		"nonsense": "unknown command", "bench": "write one of its verbs",
		"gates -nonsense": "exit status 2", "bench lab -only nonsense": "exit status 2",
		"bench policy -parts nonsense": "exit status 2", "bench policy -rounds 0": "exit status 2",
		"bench api -rates 0": "exit status 2", "bench api -parts nonsense": "exit status 2",
		"up -nodes 9": "exit status 2",
	} {
		cmd := root()
		var out bytes.Buffer
		cmd.SetOut(&out)
		cmd.SetErr(&out)
		cmd.SetArgs(strings.Fields(args))
		if err := cmd.Execute(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("kvlab %s: %v, want %q", args, err, want)
		}
	}
}
