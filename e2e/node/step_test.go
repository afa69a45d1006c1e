package node_test

import (
	"context"
	"io/fs"
	"os"
	"testing"

	"github.com/kubeveil/kubeveil/e2e/lab"
)

// The steps that most tests are made of. Each ends the test if it fails.

func addPod(ctx context.Context, t *testing.T, n *lab.Node, name string) *lab.Pod {
	t.Helper()
	p, err := n.AddPod(ctx, name, lab.PodOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// echoPod returns a pod with an echo server.
func echoPod(ctx context.Context, t *testing.T, n *lab.Node, name string) *lab.Pod {
	t.Helper()
	p := addPod(ctx, t, n, name)
	echoAt(ctx, t, p)
	return p
}

func echoAt(ctx context.Context, t *testing.T, at lab.Place) {
	t.Helper()
	if _, err := lab.Echo(ctx, at); err != nil {
		t.Fatal(err)
	}
}

func startProgram(ctx context.Context, t *testing.T, n *lab.Node, name string) {
	t.Helper()
	if _, err := n.StartProgram(ctx, name); err != nil {
		t.Fatal(err)
	}
}

func killProgram(ctx context.Context, t *testing.T, n *lab.Node, name string) {
	t.Helper()
	if err := n.Program(name).Kill(ctx); err != nil {
		t.Fatal(err)
	}
}

func waitReady(ctx context.Context, t *testing.T, n *lab.Node) {
	t.Helper()
	if err := n.WaitReady(ctx); err != nil {
		t.Fatal(err)
	}
}

func crash(t *testing.T, n *lab.Node) {
	t.Helper()
	if err := n.Crash(); err != nil {
		t.Fatal(err)
	}
}

func readFile(t *testing.T, path string) []byte {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func writeFile(t *testing.T, path string, text []byte, mode fs.FileMode) {
	t.Helper()
	if err := os.WriteFile(path, text, mode); err != nil {
		t.Fatal(err)
	}
}
