package nodetest

import (
	"context"
	"maps"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/kubeveil/kubeveil/e2e/lab"
	"github.com/kubeveil/kubeveil/e2e/lab/buildtree"
	"github.com/kubeveil/kubeveil/e2e/lab/traffic"
	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/filetest"
)

// The steps that most tests are made of. Each ends the test if it fails, unless its comment
// differs.

// EchoPods makes a pod with an echo server on each node and returns them in the order of nodes.
func EchoPods(ctx context.Context, t *testing.T, l *lab.Lab) []*lab.Pod {
	t.Helper()
	var pods []*lab.Pod
	for _, n := range l.Nodes() {
		p := EchoPod(ctx, t, n, "echo")
		pods = append(pods, p)
	}
	return pods
}

// JoinPrefixes returns prefixes as one string, separated by commas.
func JoinPrefixes(list []netip.Prefix) string {
	var out []string
	for _, p := range list {
		out = append(out, p.String())
	}
	return strings.Join(out, ",")
}

// Run runs a program in a place and returns its standard output and standard error together.
func Run(ctx context.Context, t *testing.T, at traffic.Place, name string, args ...string) string {
	t.Helper()
	out, err := at.Command(ctx, name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %v: %v: %s", name, args, err, out)
	}
	return string(out)
}

// Root returns the root of the repository.
func Root(t *testing.T) string {
	t.Helper()
	dir, err := buildtree.Root()
	errtest.Must(t, err)
	return dir
}

// AddPod returns a new pod without options.
func AddPod(ctx context.Context, t *testing.T, n *lab.Node, name string) *lab.Pod {
	t.Helper()
	p, err := n.AddPod(ctx, name, lab.PodOptions{})
	errtest.Must(t, err)
	return p
}

// EchoPod returns a pod with an echo server.
func EchoPod(ctx context.Context, t *testing.T, n *lab.Node, name string) *lab.Pod {
	t.Helper()
	p := AddPod(ctx, t, n, name)
	EchoAt(ctx, t, p)
	return p
}

// EchoAt starts an echo server in a place.
func EchoAt(ctx context.Context, t *testing.T, at traffic.Place) {
	t.Helper()
	errtest.Must(t, errtest.Of(traffic.Echo(ctx, at)))
}

// StartProgram starts a program of a node, such as veild, with the arguments of the node's boot.
func StartProgram(ctx context.Context, t *testing.T, n *lab.Node, name string) {
	t.Helper()
	errtest.Must(t, errtest.Of(n.StartProgram(ctx, name)))
}

// KillProgram kills a program of a node with SIGKILL and waits for its end.
func KillProgram(ctx context.Context, t *testing.T, n *lab.Node, name string) {
	t.Helper()
	errtest.Must(t, n.Program(name).Kill(ctx))
}

// Reconfigure changes the given keys of veild's configuration file on a node and restarts veild.
func Reconfigure(ctx context.Context, t *testing.T, n *lab.Node, settings map[string]any) {
	t.Helper()
	path := filepath.Join(n.Disk(), lab.ConfigFile)
	var all map[string]any
	err := yaml.Unmarshal(filetest.Read(t, path), &all)
	errtest.Must(t, err)
	maps.Copy(all, settings)
	text, err := yaml.Marshal(all)
	errtest.Must(t, err)

	filetest.Write(t, path, text, 0o644)
	KillProgram(ctx, t, n, "veild")
	StartProgram(ctx, t, n, "veild")
}

// Hold calls traffic.Hold.
func Hold(ctx context.Context, t *testing.T, from traffic.Place, to netip.Addr) *lab.Process {
	t.Helper()
	return started(t)(traffic.Hold(ctx, from, to))
}

// Sink calls traffic.Sink.
func Sink(ctx context.Context, t *testing.T, at traffic.Place) *lab.Process {
	t.Helper()
	return started(t)(traffic.Sink(ctx, at))
}

// Source calls traffic.Source.
func Source(ctx context.Context, t *testing.T, from traffic.Place, to netip.Addr,
	interval time.Duration) *lab.Process {
	t.Helper()
	return started(t)(traffic.Source(ctx, from, to, interval))
}

// started returns a function that returns the process that was started, or fails the test.
func started(t *testing.T) func(*lab.Process, error) *lab.Process {
	return func(p *lab.Process, err error) *lab.Process {
		t.Helper()
		errtest.Must(t, err)
		return p
	}
}

// WaitReady waits until a node accepts pods.
func WaitReady(ctx context.Context, t *testing.T, n *lab.Node) {
	t.Helper()
	errtest.Must(t, n.WaitReady(ctx))
}

// Meet waits until two pods with echo servers can exchange messages. Until their nodes have each
// other's keys, the pods' packets are refused.
func Meet(ctx context.Context, t *testing.T, a, b *lab.Pod) {
	t.Helper()
	for _, pair := range [][2]*lab.Pod{{a, b}, {b, a}} {
		err := lab.Until(ctx, 20*time.Second, func() error {
			_, err := traffic.Send(ctx, pair[0], traffic.Exchange{Proto: "tcp",
				To: pair[1].Addrs[0], Count: 1, Size: 100, Timeout: time.Second})
			return err
		})
		errtest.Must(t, err)
	}
}

// VeilctlSays runs veilctl on a node and checks that its output contains each string in want. A
// failure does not end the test.
func VeilctlSays(ctx context.Context, t *testing.T, l *lab.Lab, node *lab.Node, args string,
	want ...string) {
	t.Helper()
	out, err := node.Exec(ctx, l.Program("veilctl"), strings.Fields(args)...)
	if err != nil {
		t.Errorf("veilctl %s: %v", args, err)
	}
	for _, w := range want {
		if !strings.Contains(string(out), w) {
			t.Errorf("veilctl %s does not print %q:\n%s", args, w, out)
		}
	}
}
