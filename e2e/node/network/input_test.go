package network_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/kubeveil/kubeveil/e2e/lab"
	"github.com/kubeveil/kubeveil/e2e/lab/buildtree"
	"github.com/kubeveil/kubeveil/e2e/node/nodetest"
	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/filetest"
	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/source"
	"github.com/kubeveil/kubeveil/pkg/telemetry"
)

// refusal is a start of veild that cannot work.
type refusal struct {
	// set changes keys of the configuration. raw replaces the file.
	set map[string]any
	raw []byte
	// args follow the configuration on the command line.
	args []string
	// within is a shell script that starts veild in a new mount namespace. "$@" are the program and
	// its arguments.
	within string
	// before brings the node into the bad state. after restores the node.
	before func(t *testing.T, n *lab.Node)
	after  func(t *testing.T, n *lab.Node)
	// says holds strings that the message must contain: the fault, the place and the remedy.
	says []string
}

// veild refuses a configuration that cannot work. The message names the fault, the place and the
// remedy, and veild leaves no state on the node.
func TestBadInput(t *testing.T) {
	ctx, l := nodetest.NewLab(t, lab.Options{NoBoot: true, Nodes: 1})
	n := l.Nodes()[0]
	nodetest.StartProgram(ctx, t, n, "veil-wg")

	path := filepath.Join(n.Disk(), "etc/kubeveil/veild.yaml")
	good := filetest.Read(t, path)

	// This case is first, because the node has no state of veild yet.
	t.Run("another network plugin", func(t *testing.T) { otherPlugin(ctx, t, n) })
	for name, c := range refusals() {
		t.Run(name, func(t *testing.T) {
			writeConfig(t, path, good, c)
			if c.before != nil {
				c.before(t, n)
			}

			out := c.start(ctx, t, n)
			t.Log(out)
			for _, word := range c.says {
				if !strings.Contains(out, word) {
					t.Errorf("the message lacks %q: %s", word, out)
				}
			}

			if strings.Contains(out, "goroutine ") {
				t.Errorf("it panicked: %s", out)
			}

			nothingStays(ctx, t, n)
			if c.after != nil {
				c.after(t, n)
			}
		})
	}

	writeConfig(t, path, good, refusal{})
	t.Run("a corrupt snapshot", func(t *testing.T) {
		const corrupt = "{\"revision\": 1, \"peers\": [{]}"
		filetest.Write(t, n.Path(abi.SnapshotFile), []byte(corrupt), 0o600)
		nodetest.StartProgram(ctx, t, n, "veild")
		nodetest.WaitReady(ctx, t, n)
		aside := n.Path(abi.SnapshotFile + source.CorruptSuffix)
		if kept, err := os.ReadFile(aside); err != nil || string(kept) != corrupt {
			t.Errorf("%s holds %q (%v), want what was corrupt", aside, kept, err)
		}
	})

	t.Run("another veild runs", func(t *testing.T) {
		out := refusal{}.start(ctx, t, n)
		if !strings.Contains(out, "another veild is running") {
			t.Error(out)
		}
		if !n.Program("veild").Running() || n.Status(ctx) != nil {
			t.Error("the first one was disturbed")
		}
	})

	t.Run("the tunnel's port in use", func(t *testing.T) { portInUse(ctx, t, n) })
	t.Run("a read-only CNI folder", func(t *testing.T) { readOnlyCNI(ctx, t, n) })
	noSecrets(ctx, t, l, nil)
	nodetest.NoLeaks(t, l)
}

func refusals() map[string]refusal {
	file := "/etc/kubeveil/veild.yaml"
	junk := func(path string, text string, mode os.FileMode) func(t *testing.T, n *lab.Node) {
		return func(t *testing.T, n *lab.Node) {
			// One that is there keeps its mode when it is written to.
			err := errors.Join(os.MkdirAll(filepath.Dir(n.Path(path)), 0o755),
				os.RemoveAll(n.Path(path)), os.WriteFile(n.Path(path), []byte(text), mode))
			errtest.Must(t, err)
		}
	}

	remove := func(path string) func(t *testing.T, n *lab.Node) {
		return func(t *testing.T, n *lab.Node) {
			if err := os.Remove(n.Path(path)); err != nil {
				t.Errorf("the file that was refused is gone: %v", err)
			}
		}
	}
	return map[string]refusal{
		"an unknown key": {set: map[string]any{"clusterRange": "198.19.0.0/16"},
			says: []string{file, "clusterRange", "clusterRanges"}},
		"several problems at once": {set: map[string]any{"mtuu": 1, "logLevel": "loud",
			"serviceRanges": []string{"nonsense"}},
			says: []string{"mtuu", "logLevel", "loud", "serviceRanges", "nonsense"}},
		"overlapping ranges": {set: map[string]any{
			"serviceRanges": []string{"198.19.128.0/20", "fd42:2::/112"}},
			says: []string{"serviceRanges[0]", "198.19.128.0/20", "overlaps", "198.19.0.0/16"}},
		"a malformed range": {set: map[string]any{
			"clusterRanges": []string{"198.19.0.0/33"}},
			says: []string{file, "clusterRanges[0]", "198.19.0.0/33"}},
		"bits beyond a range": {set: map[string]any{
			"clusterRanges": []string{"198.19.1.1/16", "fd42:1::/48"}},
			says: []string{"clusterRanges[0]", "write 198.19.0.0/16"}},
		"no range": {set: map[string]any{"clusterRanges": []string{}},
			says: []string{"clusterRanges", "podSubnet"}},
		"an impossible MTU": {set: map[string]any{"mtu": 1300},
			says: []string{"mtu", "1300", "1340"}},
		"an MTU beyond all": {set: map[string]any{"mtu": 70000},
			says: []string{"mtu", "70000", "65535"}},
		"no YAML": {raw: []byte("node: ["), says: []string{file}},
		"an empty file": {raw: []byte{},
			says: []string{"clusterRanges", "serviceRanges"}},
		"a file that is not there": {args: []string{"--config", "/etc/kubeveil/nowhere.yaml"},
			says: []string{"/etc/kubeveil/nowhere.yaml", "no such file"}},
		"an unknown flag": {args: []string{"-mtuu", "1"}, says: []string{"mtuu"}},
		"a key on a disk": {set: map[string]any{"keyFile": "/etc/kubeveil/key"},
			says: []string{"/etc/kubeveil/key", "tmpfs", "trustDisk"}},
		"a kubeconfig without server": {set: map[string]any{
			"source": map[string]any{"kind": "kubernetes", "kubeconfig": "/etc/kubeveil/nowhere"}},
			says: []string{"/etc/kubeveil/nowhere"}},
		"no capability": {within: `exec setpriv --bounding-set=-net_admin --inh-caps=-net_admin -- "$@"`, says: []string{"CAP_NET_ADMIN", "root"}},
		"no root": {within: `exec setpriv --reuid=65534 --regid=65534 --clear-groups -- "$@"`,
			says: []string{"root"}},
		"no TUN": {set: map[string]any{
			"tunnel": map[string]any{"mode": "userspace"}},
			within: `mount -t tmpfs none /dev/net && exec "$@"`,
			says:   []string{"/dev/net/tun", "tun"}},
		"no BPF file system": {within: `umount /sys/fs/bpf && exec "$@"`,
			says: []string{"/sys/fs/bpf", "mount -t bpf"}},
		"no right to use BPF": {within: `exec setpriv --bounding-set=-bpf,-sys_admin --inh-caps=-bpf,-sys_admin -- "$@"`, says: []string{"CAP_BPF"}},
		"the metrics' port in use": {within: `"$TOOLS" echo-serve --listen ` + abi.MetricsAddress +
			` >/dev/null & tool=$!
			for i in $(seq 200); do (exec 3<>/dev/tcp/127.0.0.1/9631) 2>/dev/null && break; sleep 0.01; done; "$@"; code=$?; kill $tool; wait $tool; exit $code`,
			says: []string{"metricsAddress", "9631", "in use"}},
		"a corrupt key": {before: junk(abi.KeyFile, "not a key\n", 0o600),
			after: remove(abi.KeyFile), says: []string{abi.KeyFile, "move the file away"}},
		"a key others read": {before: junk(abi.KeyFile, strings.Repeat("A", 43)+"=\n", 0o644),
			after: remove(abi.KeyFile), says: []string{abi.KeyFile, "chmod"}},
		"no socket for admin": {before: junk(abi.AdminSocket, "", 0o600),
			after: remove(abi.AdminSocket), says: []string{abi.AdminSocket, "not a socket"}},
	}
}

// writeConfig writes the configuration of a case over the good one.
func writeConfig(t *testing.T, path string, good []byte, c refusal) {
	t.Helper()
	text := good
	if c.set != nil {
		settings := map[string]any{}
		errtest.Must(t, yaml.Unmarshal(good, &settings))
		for key, value := range c.set {
			settings[key] = value
		}
		var err error
		if text, err = yaml.Marshal(settings); err != nil {
			t.Fatal(err)
		}
	}
	if c.raw != nil {
		text = c.raw
	}
	filetest.Write(t, path, text, 0o644)
}

// start starts veild as the case defines, checks that it ends by itself with an error, and returns
// its output.
func (c refusal) start(ctx context.Context, t *testing.T, n *lab.Node) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	root, err := buildtree.Root()
	errtest.Must(t, err)
	bin := filepath.Join(root, "out/bin")
	within := c.within
	if within == "" {
		within = `exec "$@"`
	}
	args := append([]string{"TOOLS=" + bin + "/veil-tools", "unshare", "-m", "bash", "-c", within,
		"bash", bin + "/veild", "--config", "/etc/kubeveil/veild.yaml"}, c.args...)
	out, err := n.Command(ctx, "env", args...).CombinedOutput()
	var status *exec.ExitError
	if !errors.As(err, &status) || status.ExitCode() != 1 {
		t.Errorf("veild ended with %v, want exit status 1: %s", err, out)
	}
	return string(out)
}

// nothingStays checks that there is no CNI configuration, marker, guard, route or rule of Kubeveil.
func nothingStays(ctx context.Context, t *testing.T, n *lab.Node) {
	t.Helper()
	if has, err := n.HasConflist(); has || err != nil {
		t.Errorf("a CNI configuration was written (%v)", err)
	}
	if _, err := os.Stat(n.Path(abi.ReadyFile)); err == nil {
		t.Error("a marker was written")
	}
	if entries, err := os.ReadDir(n.Path(abi.BPFDir)); err == nil && len(entries) > 0 {
		t.Errorf("%d pins were made", len(entries))
	}
	if out := nodetest.Run(ctx, t, n, "nft", "list", "tables"); strings.Contains(out, "kubeveil") {
		t.Errorf("nft tables: %s", out)
	}
	for _, family := range []string{"-4", "-6"} {
		for _, args := range [][]string{{"route", "show", "table", "all"}, {"rule", "show"}} {
			out := nodetest.Run(ctx, t, n, "ip", append([]string{family}, args...)...)
			if strings.Contains(out, "proto 118") {
				t.Errorf("%v %s: %s", args, family, out)
			}
		}
	}
}

// otherPlugin leaves the configuration of another network plugin that sorts before Kubeveil's. It
// checks that this is reported before anything is made.
func otherPlugin(ctx context.Context, t *testing.T, n *lab.Node) {
	path := filepath.Join(n.Disk(), "etc/cni/net.d/00-other.conflist")
	filetest.Write(t, path, []byte(`{"plugins":[{"type":"bridge"}]}`), 0o644)
	out := refusal{}.start(ctx, t, n)
	t.Log(out)
	for _, word := range []string{"/etc/cni/net.d/00-other.conflist", "bridge",
		"remove that plugin"} {
		if !strings.Contains(out, word) {
			t.Errorf("the message lacks %q: %s", word, out)
		}
	}
	if err := os.Remove(path); err != nil {
		t.Errorf("the configuration of the other is gone: %v", err)
	}
	if _, err := os.Stat(n.Path(abi.KeyFile)); err == nil {
		t.Error("a key was made")
	}
	nothingStays(ctx, t, n)
}

// portInUse takes the tunnel's port before a node comes up. It checks that this is reported and
// that no pod runs until the port is free.
func portInUse(ctx context.Context, t *testing.T, n *lab.Node) {
	crash(t, n)
	errtest.Must(t, n.Boot(ctx, false))
	taken, err := n.Start(ctx, tools(t), "echo-serve", "--listen", ":51820")
	errtest.Must(t, err)
	errtest.Must(t, taken.WaitLine(ctx, "listening", 5*time.Second))

	for _, name := range []string{"veil-wg", "veild"} {
		nodetest.StartProgram(ctx, t, n, name)
	}

	s := waitProblem(ctx, t, n, "51820")
	t.Logf("problems: %q", s.Problems)
	if _, err := n.AddPod(ctx, "early", lab.PodOptions{}); err == nil {
		t.Error("a pod was added although the tunnel has no port")
	}
	errtest.Must(t, taken.Kill(ctx))
	errtest.Check(t, n.WaitReady(ctx))
}

// readOnlyCNI makes /etc/cni read-only for veild, and checks that only this is reported and broken.
func readOnlyCNI(ctx context.Context, t *testing.T, n *lab.Node) {
	errtest.Must(t, n.Program("veild").Term(ctx))
	errtest.Must(t, os.Remove(filepath.Join(n.Disk(), "etc/cni/net.d", abi.ConflistName)))
	nodetest.Run(ctx, t, n, "mount", "--bind", "/etc/cni", "/etc/cni")
	nodetest.Run(ctx, t, n, "mount", "-o", "remount,bind,ro", "/etc/cni")
	nodetest.StartProgram(ctx, t, n, "veild")
	s := waitProblem(ctx, t, n, "read-only file system")
	for _, p := range s.Problems {
		if !strings.Contains(p, abi.ConflistName) || !strings.Contains(p, "cni.confDir") {
			t.Errorf("problem: %s", p)
		}
	}
	t.Logf("problems: %q", s.Problems)
	if has, err := n.HasConflist(); has || err != nil || s.Ready {
		t.Errorf("CNI configuration %v (%v), ready %v", has, err, s.Ready)
	}
	nodetest.Run(ctx, t, n, "mount", "-o", "remount,bind,rw", "/etc/cni")
	errtest.Check(t, n.WaitReady(ctx))
}

// waitProblem waits until a node's veild reports a problem that contains some words.
func waitProblem(ctx context.Context, t *testing.T, n *lab.Node, words string) telemetry.Status {
	t.Helper()
	return nodetest.WaitStatus(ctx, t, n, 20*time.Second, func(s telemetry.Status) error {
		for _, p := range s.Problems {
			if strings.Contains(p, words) {
				return nil
			}
		}
		return errors.New(strings.Join(s.Problems, "; "))
	})
}

func tools(t *testing.T) string {
	t.Helper()
	root, err := buildtree.Root()
	errtest.Must(t, err)
	return filepath.Join(root, "out/bin/veil-tools")
}
