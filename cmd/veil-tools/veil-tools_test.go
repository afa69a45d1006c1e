package main

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"github.com/kubeveil/kubeveil/cmd/veil-tools/internal/api"
	"github.com/kubeveil/kubeveil/cmd/veil-tools/internal/bench"
	"github.com/kubeveil/kubeveil/cmd/veil-tools/internal/lab"
	"github.com/kubeveil/kubeveil/cmd/veil-tools/internal/node"
	"github.com/kubeveil/kubeveil/cmd/veil-tools/internal/verb"
	"github.com/kubeveil/kubeveil/hack/deptest"
)

func TestDependencies(t *testing.T) {
	deptest.Forbid(t, map[string]string{
		deptest.Module + "/e2e":              "test code is not shipped",
		deptest.Module + "/internal/nettest": "test code is not shipped",
		deptest.Module + "/pkg/agent":        "the tools look at a node from outside the daemon",
		"k8s.io/client-go": "the tools in pods are called by exec and have no " +
			"kubeconfig",
	})
}

// A verb of one package does not hide a verb of another.
func TestVerbsHaveOneOwner(t *testing.T) {
	want := len(api.Verbs()) + len(bench.Verbs()) + len(lab.Verbs()) + len(node.Verbs())
	if got := len(verbs()); got != want {
		t.Errorf("%d verbs, want %d", got, want)
	}

	var text bytes.Buffer
	usage(&text, verbs())
	for name, v := range verbs() {
		if v.Run == nil || v.Short == "" || !strings.Contains(text.String(), "  "+name+" ") {
			t.Errorf("verb %s is incomplete, or not in the usage", name)
		}
	}
}

func TestExitStatus(t *testing.T) {
	failing := func(err error) verb.Verb {
		return verb.Verb{Run: func(context.Context, []string) error { return err }}
	}
	verbs := verb.Verbs{
		"good": failing(nil), "bad": failing(errors.New("broken")), "asked": failing(pflag.ErrHelp),
	}

	for name, want := range map[string]int{
		"good": 0, "bad": 1, "asked": 0, "unknown": 2, "": 2, "-h": 0,
	} {
		if got := run(strings.Fields(name), verbs); got != want {
			t.Errorf("veil-tools %s: status %d, want %d", name, got, want)
		}
	}
}
