package network_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"

	"github.com/kubeveil/kubeveil/e2e/lab"
	"github.com/kubeveil/kubeveil/e2e/lab/buildtree"
	"github.com/kubeveil/kubeveil/e2e/lab/traffic"
	"github.com/kubeveil/kubeveil/e2e/node/nodetest"
	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/filetest"
	"github.com/kubeveil/kubeveil/pkg/abi"
)

// Uninstalling leaves a node as it was before, while pods are still there, and leaks nothing.
// Installing again works.
func TestUninstall(t *testing.T) {
	ctx, l := nodetest.NewLab(t, lab.Options{NoBoot: true})
	n := l.Nodes()[0]
	// An address has routes once it is known to be unique.
	err := lab.Until(ctx, 10*time.Second, func() error {
		if out := nodetest.Run(ctx, t, n, "ip", "-6", "address", "show", "tentative"); out != "" {
			return fmt.Errorf("tentative: %s", out)
		}
		return nil
	})
	errtest.Must(t, err)
	before := inventory(ctx, t, n)
	var pods []*lab.Pod
	install := func(nodes ...*lab.Node) {
		for _, n := range nodes {
			for _, name := range []string{"veil-wg", "veild"} {
				nodetest.StartProgram(ctx, t, n, name)
			}
		}
		for _, n := range nodes {
			nodetest.WaitReady(ctx, t, n)
		}
	}
	install(l.Nodes()...)
	pods = nodetest.EchoPods(ctx, t, l)
	nodetest.Meet(ctx, t, pods[0], pods[1])
	talk(ctx, t, pods[0], pods[1])
	source := nodetest.Source(ctx, t, pods[0], pods[1].Addrs[0], 0)
	if len(difference(before, inventory(ctx, t, n))) < 20 {
		t.Error("the inventory does not see an installation")
	}
	noSecrets(ctx, t, l, nil)
	conflist := filetest.Read(t, filepath.Join(n.Disk(), "etc/cni/net.d", abi.ConflistName))

	t.Run("refused while veild runs", func(t *testing.T) {
		if out, err := cleanup(ctx, n); err == nil || !strings.Contains(out, "stop it first") {
			t.Errorf("cleanup beside veild: %v: %s", err, out)
		}
		talk(ctx, t, pods[0], pods[1])
	})
	// The kernel sends both again after the guard is gone: a connection with data, and one that
	// no answer has arrived.
	const silentPort = 9
	nodetest.Run(ctx, t, pods[1], "nft",
		fmt.Sprintf("table inet silent { chain in { type filter hook "+
			"input priority 0; tcp dport %d drop; }; }", silentPort))
	open := []*lab.Process{
		connect(ctx, t, n, netip.AddrPortFrom(pods[1].Addr(false), traffic.EchoPort), "connected"),
		connect(ctx, t, n, netip.AddrPortFrom(pods[1].Addr(true), silentPort), "tries"),
	}
	t.Run("everything is taken", func(t *testing.T) { uninstall(ctx, t, n, before, true) })
	errtest.Check(t, source.Kill(ctx))
	for _, p := range open {
		left, cancel := context.WithTimeout(ctx, 10*time.Second)
		if err := p.Wait(left); left.Err() != nil {
			t.Errorf("a process of the node still has its connection to a pod: %v",
				errors.Join(err, p.Kill(ctx)))
		}
		cancel()
	}
	t.Run("ADD fails clearly", func(t *testing.T) { addRefused(ctx, t, n, conflist) })
	t.Run("DEL of the pod that is left", func(t *testing.T) {
		// Runtimes keep the configuration of a pod's ADD and call DEL with it.
		path := filepath.Join(n.Disk(), "etc/cni/net.d", abi.ConflistName)
		filetest.Write(t, path, conflist, 0o644)
		errtest.Check(t, errors.Join(pods[0].Del(ctx), os.Remove(path)))
		// The lock of host-local, on tmpfs, comes with every call of it.
		left := slices.DeleteFunc(difference(before, inventory(ctx, t, n)), func(line string) bool {
			return strings.HasPrefix(line, "+ file: "+abi.RunDir)
		})
		if len(left) > 0 {
			t.Errorf("DEL left:\n%s", strings.Join(left, "\n"))
		}
	})
	t.Run("again", func(t *testing.T) {
		install(n)
		again := nodetest.EchoPod(ctx, t, n, "again")
		nodetest.Meet(ctx, t, again, pods[1])
		talk(ctx, t, again, pods[1])
	})
	t.Run("while veil-wg runs", func(t *testing.T) { uninstall(ctx, t, n, before, false) })
	nodetest.NoLeaks(t, l)
}

// connect starts a process of a node that opens a connection and writes without end. It waits until
// the process reports that it is ready: it tries, or is connected.
func connect(ctx context.Context, t *testing.T, n *lab.Node, to netip.AddrPort,
	ready string) *lab.Process {
	t.Helper()
	script := fmt.Sprintf("echo tries; exec 3<>/dev/tcp/%s/%d && echo connected; while echo "+
		"canary >&3; do sleep 0.1; done", to.Addr(), to.Port())
	p, err := n.Start(ctx, "bash", "-c", script)
	errtest.Must(t, err)
	errtest.Must(t, p.WaitLine(ctx, ready, 10*time.Second))
	return p
}

// cleanup runs veild cleanup on a node and returns its output.
func cleanup(ctx context.Context, n *lab.Node) (string, error) {
	root, err := buildtree.Root()
	if err != nil {
		return "", err
	}
	out, err := n.Command(ctx, filepath.Join(root, "out/bin/veild"), "cleanup", "--config",
		lab.ConfigFile).CombinedOutput()
	return string(out), err
}

// uninstall stops veild, and with worker veil-wg too, and cleans up while pods are there. Nothing
// may be left, and cleaning up once more finds nothing. Without worker, veil-wg is stopped before
// the second cleanup.
func uninstall(ctx context.Context, t *testing.T, n *lab.Node, before []string, worker bool) {
	errtest.Check(t, n.Program("veild").Term(ctx))

	stopWorker := func() {
		errtest.Check(t, n.Program("veil-wg").Term(ctx))
	}
	if worker {
		stopWorker()
	}
	out, err := cleanup(ctx, n)
	if err != nil {
		t.Fatalf("cleanup: %v: %s", err, out)
	}

	t.Logf("cleanup says:\n%s", out)
	if first, _, _ := strings.Cut(out, "\n"); !strings.Contains(first, "CNI configuration") {
		t.Errorf("the CNI configuration was not the first to go: %s", first)
	}

	left := difference(before, inventory(ctx, t, n))
	if !worker {
		// A worker that runs keeps the folders that it looks into.
		left = slices.DeleteFunc(left, func(line string) bool {
			return strings.HasPrefix(line, "+ file: "+abi.RunDir) ||
				line == "+ file: /run/wireguard"
		})
		stopWorker()
	}

	if len(left) > 0 {
		t.Errorf("not as before the installation:\n%s", strings.Join(left, "\n"))
	}
	out, err = cleanup(ctx, n)
	if err != nil || worker && !strings.Contains(out, "0 objects removed") {
		t.Errorf("cleanup once more: %v: %s", err, out)
	}
	if left := difference(before, inventory(ctx, t, n)); len(left) > 0 {
		t.Errorf("after cleaning up once more:\n%s", strings.Join(left, "\n"))
	}
}

// addRefused checks that ADD fails without the CNI configuration, and with it restored by hand.
func addRefused(ctx context.Context, t *testing.T, n *lab.Node, conflist []byte) {
	if _, err := n.AddPod(ctx, "orphan", lab.PodOptions{}); err == nil {
		t.Error("a pod was added without a CNI configuration")
	}
	path := filepath.Join(n.Disk(), "etc/cni/net.d", abi.ConflistName)
	filetest.Write(t, path, conflist, 0o644)
	_, err := n.AddPod(ctx, "orphan", lab.PodOptions{})
	var refusal *lab.CNIError
	if !errors.As(err, &refusal) || refusal.Code != 11 ||
		!strings.Contains(refusal.Message, "veild") {
		t.Errorf("ADD after cleanup: %v, want code 11 that names veild", err)
	}
	t.Logf("ADD says: %v", err)
	if err := n.Status(ctx); err == nil {
		t.Error("STATUS says that the node takes pods")
	}
	errtest.Must(t, os.Remove(path))
}

// inventory lists everything that a program could have left on a node.
func inventory(ctx context.Context, t *testing.T, n *lab.Node) []string {
	t.Helper()
	var out []string
	add := func(kind, text string) {
		for line := range strings.Lines(text) {
			if line = strings.TrimSpace(line); line != "" {
				out = append(out, kind+": "+line)
			}
		}
	}

	for _, family := range []string{"-4", "-6"} {
		add("rule "+family, nodetest.Run(ctx, t, n, "ip", family, "rule", "list"))
		add("route "+family, nodetest.Run(ctx, t, n, "ip", "-N", family, "route", "list", "table",
			"all"))
		add("neighbour "+family, nodetest.Run(ctx, t, n, "ip", family, "neigh", "list", "nud",
			"permanent"))
	}

	for line := range strings.Lines(nodetest.Run(ctx, t, n, "ip", "-o", "link", "list")) {
		fields := strings.Fields(line)
		add("link", strings.TrimRight(strings.Split(fields[1], "@")[0], ":"))
	}

	add("nft", nodetest.Run(ctx, t, n, "nft", "-s", "list", "ruleset"))
	add("qdisc", nodetest.Run(ctx, t, n, "tc", "qdisc", "list"))
	add("file", nodetest.Run(ctx, t, n, "find", "/etc/cni", "/etc/kubeveil", "/run", "/sys/fs/bpf",
		"-not", "-path", "/run/netns/*", "-not", "-path", "/run/lock*"))
	err := n.Do(func() error {
		links, err := netlink.LinkList()
		if err != nil {
			return err
		}

		for _, l := range links {
			for _, at := range []ebpf.AttachType{ebpf.AttachTCXIngress, ebpf.AttachTCXEgress} {
				r, err := link.QueryPrograms(link.QueryOptions{Target: l.Attrs().Index, Attach: at})
				if errors.Is(err, ebpf.ErrNotSupported) {
					continue // a kernel with clsact only, which is a qdisc
				}
				if err != nil {
					return err
				}
				add("bpf", fmt.Sprintf("%d programs at %s of %s", len(r.Programs), at,
					l.Attrs().Name))
			}
		}

		settings, err := filepath.Glob("/proc/sys/net/ipv[46]/conf/*/*")
		if err != nil {
			return err
		}

		settings = append(settings, "/proc/sys/net/ipv4/ip_forward")
		for _, s := range settings {
			if b, err := os.ReadFile(s); err == nil {
				add("setting", s+" "+string(b))
			}
		}

		return nil
	})
	errtest.Must(t, err)

	return out
}

// The kernel changes volatile parts of an inventory by itself.
func volatile(line string) bool {
	return strings.Contains(line, "stable_secret") || strings.Contains(line, "/conf/lo/")
}

// difference lists what is in one inventory only.
func difference(before, after []string) (out []string) {
	for _, line := range after {
		if !slices.Contains(before, line) && !volatile(line) {
			out = append(out, "+ "+line)
		}
	}
	for _, line := range before {
		if !slices.Contains(after, line) && !volatile(line) {
			out = append(out, "- "+line)
		}
	}
	return out
}
