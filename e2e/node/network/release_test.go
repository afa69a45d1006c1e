package network_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/kubeveil/kubeveil/e2e/lab"
	"github.com/kubeveil/kubeveil/e2e/lab/traffic"
	"github.com/kubeveil/kubeveil/e2e/node/nodetest"
	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/telemetry"
)

// lastRelease is the commit of the release that this tree must work beside. Each
// release sets it to the commit of the release before. A clone without this commit skips
// TestMixedReleases. hack/test.sh looks for the commit and expects the skip then, in CI too.
const lastRelease = "c7a5a9071ecfecf4819e210124f6441718b882ac"

// released builds the programs of the last release, once in a clone, and returns
// their folder, which has the reference plugins as well.
func released(ctx context.Context, t *testing.T) string {
	t.Helper()
	top := nodetest.Root(t)
	if err := exec.CommandContext(ctx, "git", "-C", top, "cat-file", "-e",
		lastRelease+"^{commit}").Run(); err != nil {
		nettest.Skip(t, nettest.NoRelease, "git fetch origin "+lastRelease+" brings it")
	}
	dir := filepath.Join(top, "out/release", lastRelease)
	if _, err := os.Stat(filepath.Join(dir, "built")); err == nil {
		return dir
	}
	build := exec.CommandContext(ctx, "bash", "-euo", "pipefail", "-c", `
		rm -rf "$DIR"
		mkdir -p "$DIR"
		tree=$(mktemp -d)
		trap 'rm -rf "$tree"' EXIT
		git -C "$TOP" archive "$COMMIT" | tar -x -C "$tree"
		cd "$tree"
		go build -trimpath -buildvcs=false -o "$DIR/" ./cmd/veild ./cmd/veil-wg ./plugins/veil
		for plugin in host-local loopback ptp bandwidth portmap; do ln -s "$TOP/out/bin/$plugin" "$DIR/"; done
		touch "$DIR/built"`)
	build.Env = append(os.Environ(), "TOP="+top, "DIR="+dir, "COMMIT="+lastRelease, "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the last release: %v: %s", err, out)
	}
	return dir
}

// A cluster goes from the last release to this tree and back, program by program and node by node.
// At each step traffic goes on, an older pod and a new pod have a network, and every program is
// still the process that was started. The test needs the commit lastRelease and skips in a clone
// without it, such as a shallow one.
func TestMixedReleases(t *testing.T) {
	ctx, l := nodetest.NewLab(t, lab.Options{NoBoot: true})
	const this = ""
	last := released(ctx, t)
	m := &mixed{lab: l, t: t}
	for _, n := range l.Nodes() {
		m.run(ctx, n, last, "veil-wg", "veild")
	}
	m.pods = nodetest.EchoPods(ctx, t, l)
	m.check(ctx, "last release")

	n1, n2 := l.Nodes()[0], l.Nodes()[1]
	for _, step := range []struct {
		what     string
		node     *lab.Node
		bin      string
		programs []string
	}{
		{"upgrade of veild beside the old veil-wg", n1, this, []string{"veild"}},
		{"upgrade of veil-wg beside the old veild", n2, this, []string{"veil-wg"}},
		{"upgrade of veil-wg under the new veild", n1, this, []string{"veil-wg"}},
		{"upgrade of the last program", n2, this, []string{"veild"}},
		{"rollback of veild beside the new veil-wg", n2, last, []string{"veild"}},
		{"rollback of veil-wg beside the new veild", n1, last, []string{"veil-wg"}},
		{"rollback of veil-wg under the old veild", n2, last, []string{"veil-wg"}},
		{"rollback of the last program", n1, last, []string{"veild"}},
		{"second upgrade", n1, this, []string{"veil-wg", "veild"}},
	} {
		m.run(ctx, step.node, step.bin, step.programs...)
		m.check(ctx, step.what)
	}
	nodetest.NoLeaks(t, l)
}

// mixed is a cluster whose programs are of two releases.
type mixed struct {
	lab  *lab.Lab
	t    *testing.T
	pods []*lab.Pod
}

// run replaces programs of a node by the programs of a folder. The folder's plugin also adds new
// pods.
func (m *mixed) run(ctx context.Context, n *lab.Node, bin string, programs ...string) {
	m.t.Helper()
	n.UsePrograms(bin)
	for _, name := range programs {
		if p := n.Program(name); p != nil {
			if err := p.Term(ctx); err != nil {
				m.t.Fatalf("%s: stop %s: %v", n.Name, name, err)
			}
		}
		errtest.Must(m.t, errtest.Of(n.StartProgram(ctx, name)))
	}
	// The marker and veild give the plugin the state of the program that runs now.
	errtest.Must(m.t, n.WaitReady(ctx))
}

// check requires that every program is alive and reports no problem of formats. It also requires
// traffic between the pods of before and to a new one on each node.
func (m *mixed) check(ctx context.Context, when string) {
	m.t.Helper()
	m.t.Logf("after: %s", when)
	nodetest.Meet(ctx, m.t, m.pods[0], m.pods[1])

	for i, n := range m.lab.Nodes() {
		p, err := n.AddPod(ctx, "now", lab.PodOptions{})
		if err != nil {
			m.t.Fatalf("%s: %v", when, err)
		}
		errtest.Must(m.t, errtest.Of(traffic.Echo(ctx, p)))

		nodetest.Meet(ctx, m.t, m.pods[1-i], p)
		if err := p.Del(ctx); err != nil {
			m.t.Errorf("%s: %v", when, err)
		}

		for _, name := range []string{"veild", "veil-wg"} {
			if !n.Program(name).Running() {
				m.t.Fatalf("%s: %s of %s has ended", when, name, n.Name)
			}
		}

		nodetest.WaitStatus(ctx, m.t, n, 20*time.Second, func(s telemetry.Status) error {
			if len(s.Problems) > 0 || len(s.Peers) != 1 {
				return fmt.Errorf("%s: peers %+v, problems %q", when, s.Peers, s.Problems)
			}
			return nil
		})
		if _, err := os.Stat(n.Path(abi.SnapshotFile)); err != nil {
			m.t.Errorf("%s: %v", when, err)
		}
	}
}
