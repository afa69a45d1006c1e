package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/pod"
	"github.com/kubeveil/kubeveil/pkg/pod/podtest"
)

// The main thread shows the process's mounts to the leak check: a goroutine that
// leaves its thread in another mount namespace must not get it.
func init() { runtime.LockOSThread() }

// binDir has the plugins, built once for the package. They stay, and the next process links them
// only after a change.
var binDir string

func TestMain(m *testing.M) {
	dir, err := filepath.Abs("../../out/plugin")
	if err = errors.Join(err, os.MkdirAll(dir, 0o755)); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	binDir = dir
	os.Exit(nettest.Run(m))
}

const reference = "github.com/containernetworking/plugins/plugins/"

var builds sync.Map // package to func() error

// build builds commands into binDir, each once.
func build(t testing.TB, packages ...string) {
	t.Helper()
	for _, pkg := range packages {
		once, _ := builds.LoadOrStore(pkg, sync.OnceValue(func() error {
			cmd := exec.Command("go", "build", "-ldflags=-s -w", "-o", binDir+"/", pkg)
			cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
			if out, err := cmd.CombinedOutput(); err != nil {
				return fmt.Errorf("build %s: %w\n%s", pkg, err, out)
			}
			return nil
		}))
		errtest.Must(t, once.(func() error)())
	}
}

var (
	range4 = netip.MustParsePrefix("198.18.0.0/16")
	range6 = netip.MustParsePrefix("fd42:1::/48")
)

// node is a host that is ready for pods, with the plugins beside it.
type node struct {
	*nettest.Host
	t     testing.TB
	paths pod.Paths
}

func newNode(t testing.TB) *node {
	t.Helper()
	nettest.NeedBPF(t)
	nettest.NeedProgram(t, "nsenter")
	build(t, ".", reference+"ipam/host-local")
	n := &node{Host: nettest.NewHost(t, abi.RunDir), t: t, paths: pod.DefaultPaths()}
	n.Run(t, func() error {
		return podtest.Ready(n.paths.BPFDir, n.paths.ReadyFile, range4, range6)
	})
	return n
}

// attachment holds the data by which a runtime identifies an attachment.
type attachment struct{ id, ifName, netns string }

// call is one execution of a plugin.
type call struct {
	plugin string // veil when empty
	verb   string
	att    attachment
	conf   []byte
	path   string // CNI_PATH; binDir when empty
}

// run executes a plugin on the node, as a runtime would; any goroutine may. The
// error is the *types.Error that the plugin printed, if it printed one.
func (n *node) run(c call) ([]byte, error) {
	if c.plugin == "" {
		c.plugin = "veil"
	}
	if c.path == "" {
		c.path = binDir
	}
	cmd := exec.Command("nsenter", "--net="+n.Path(), "--mount="+n.MountPath(),
		filepath.Join(binDir, c.plugin))
	cmd.Env = []string{
		"PATH=" + os.Getenv("PATH"), "CNI_COMMAND=" + c.verb, "CNI_CONTAINERID=" + c.att.id,
		"CNI_IFNAME=" + c.att.ifName, "CNI_NETNS=" + c.att.netns, "CNI_PATH=" + c.path,
	}
	cmd.Stdin = bytes.NewReader(c.conf)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		e := &types.Error{}
		if json.Unmarshal(stdout.Bytes(), e) == nil && e.Code != 0 {
			return nil, e
		}
		return nil, fmt.Errorf("%s %s: %w: %s %s", c.plugin, c.verb, err, stdout.String(),
			stderr.String())
	}
	return stdout.Bytes(), nil
}

// try runs veil with a verb for an attachment.
func (n *node) try(verb string, a attachment, conf []byte) ([]byte, error) {
	return n.run(call{verb: verb, att: a, conf: conf})
}

// must is like try, but an error fails the test.
func (n *node) must(verb string, a attachment, conf []byte) []byte {
	n.t.Helper()
	out, err := n.try(verb, a, conf)
	if err != nil {
		n.t.Fatalf("%s: %v", verb, err)
	}
	return out
}

// newPod makes a pod's namespace.
func newPod(t testing.TB, id string) (attachment, *nettest.NS) {
	t.Helper()
	ns := nettest.NewNS(t)
	return attachment{id: id, ifName: "eth0", netns: ns.Path()}, ns
}

// object is a configuration under construction.
type object map[string]any

func ipamOf(subnets ...string) object {
	var ranges []any
	for _, s := range subnets {
		ranges = append(ranges, []any{object{"subnet": s}})
	}
	return object{"type": "host-local", "dataDir": abi.IPAMDir, "ranges": ranges}
}

// conf returns a dual-stack configuration for a version of CNI, with the keys in change replaced. A
// nil value removes its key.
func conf(version string, change object) []byte {
	c := object{
		"cniVersion": version, "name": "kubeveil", "type": "veil", "mtu": 1420,
		"ipam": ipamOf("198.18.1.0/24", "fd42:1:0:1::/64"),
	}
	maps.Copy(c, change)
	maps.DeleteFunc(c, func(_ string, v any) bool { return v == nil })
	data, err := json.Marshal(c)
	if err != nil {
		panic(err)
	}
	return data
}

func raw(data []byte) json.RawMessage { return json.RawMessage(data) }

// leftovers returns all objects of pods on the node, as lines.
func (n *node) leftovers() []string {
	n.t.Helper()
	var lines []string
	n.Run(n.t, func() (err error) {
		lines, err = podtest.Leftovers(abi.PodDir, abi.IPAMDir)
		return err
	})
	return lines
}

// wantNothing fails the test when anything of a pod is on the node.
func (n *node) wantNothing() {
	n.t.Helper()
	if left := n.leftovers(); len(left) != 0 {
		n.t.Errorf("left over:\n%s", strings.Join(left, "\n"))
	}
}

// wantError fails the test unless err has the code and contains each of want.
func wantError(t testing.TB, err error, code uint, want ...string) {
	t.Helper()
	var e *types.Error
	if !errors.As(err, &e) || e.Code != code {
		t.Errorf("error %v, want code %d", err, code)
		return
	}
	for _, w := range want {
		if !strings.Contains(e.Error(), w) {
			t.Errorf("error %q does not say %q", e, w)
		}
	}
}
