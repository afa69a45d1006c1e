package node_test

import (
	"context"
	"io/fs"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/kubeveil/kubeveil/e2e/lab"
)

// echoPods makes a pod with an echo server on each node.
func echoPods(ctx context.Context, t *testing.T, l *lab.Lab) []*lab.Pod {
	t.Helper()
	var pods []*lab.Pod
	for _, n := range l.Nodes() {
		p := echoPod(ctx, t, n, "echo")
		pods = append(pods, p)
	}
	return pods
}

func joinPrefixes(list []netip.Prefix) string {
	var out []string
	for _, p := range list {
		out = append(out, p.String())
	}
	return strings.Join(out, ",")
}

// run runs a program in a place and fails the test when it fails.
func run(ctx context.Context, t *testing.T, at lab.Place, name string, args ...string) string {
	t.Helper()
	out, err := at.Command(ctx, name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %v: %v: %s", name, args, err, out)
	}
	return string(out)
}

func root(t *testing.T) string {
	t.Helper()
	dir, err := lab.Root()
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

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

// meet waits until the nodes of two pods know each other's keys; before that the
// pods' packets are refused.
func meet(ctx context.Context, t *testing.T, a, b *lab.Pod) {
	t.Helper()
	for _, pair := range [][2]*lab.Pod{{a, b}, {b, a}} {
		err := lab.Until(ctx, 20*time.Second, func() error {
			_, err := lab.Send(ctx, pair[0], lab.Exchange{Proto: "tcp", To: pair[1].Addrs[0],
				Count: 1, Size: 100, Timeout: time.Second})
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

// veilctlSays runs veilctl on a node and wants words in what it prints.
func veilctlSays(ctx context.Context, t *testing.T, l *lab.Lab, node *lab.Node, args string,
	want ...string) {
	t.Helper()
	out, err := node.Exec(ctx, l.Program("veilctl"), strings.Fields(args)...)
	if err != nil {
		t.Errorf("veilctl %s: %v", args, err)
	}
	for _, w := range want {
		if !strings.Contains(string(out), w) {
			t.Errorf("veilctl %s does not say %q:\n%s", args, w, out)
		}
	}
}
