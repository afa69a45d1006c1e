package lab

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"github.com/kubeveil/kubeveil/e2e/lab/addressplan"
	"github.com/kubeveil/kubeveil/e2e/lab/labhost"
	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/leak"
	"github.com/kubeveil/kubeveil/pkg/worker"
)

// Node is a node of the cluster. It has a Node object if there is an API server, runs the programs
// of its network, and has pods.
type Node struct {
	*Host
	// Number is 1 for the first node of a lab with a network of its own.
	Number int
	// Addrs are the node's addresses on the underlay, IPv4 first.
	Addrs []netip.Addr
	// PodPrefixes are the prefixes from which the node assigns pod addresses, IPv4 first.
	PodPrefixes []netip.Prefix

	uid       types.UID
	mu        sync.Mutex
	bin       string // folder of the node's programs and plugins; "" means the lab's folder
	processes map[string]*Process
	pods      map[string]*Pod
	numbers   int
}

// Files on a node: the configuration of veild, its token, the certificate authority of the API
// server, and the kubeconfig.
const (
	ConfigFile     = "/etc/kubeveil/veild.yaml"
	TokenFile      = "/etc/kubeveil/token"
	authorityFile  = "/etc/kubeveil/ca.crt"
	kubeconfigFile = "/etc/kubeveil/kubeconfig"
)

// AddNode makes another node and, unless Options.NoBoot is set, starts its programs. It does not
// wait until they are ready, see WaitReady.
func (l *Lab) AddNode(ctx context.Context) (*Node, error) { return l.AddNodeFor(ctx, nil) }

// AddNodeFor is AddNode for a node with given pod prefixes, such as those of a removed node. Nil
// assigns new prefixes.
func (l *Lab) AddNodeFor(ctx context.Context, podPrefixes []netip.Prefix) (*Node, error) {
	l.mu.Lock()
	l.numbers++
	number := l.numbers
	l.mu.Unlock()
	f := l.opts.Family
	n := &Node{Number: number,
		Addrs:       addressplan.AddrsOf(f.Underlay(byte(addressplan.NodeHost + number))),
		PodPrefixes: f.PodPrefixes(number),
		processes:   map[string]*Process{}, pods: map[string]*Pod{}}
	if podPrefixes != nil {
		n.PodPrefixes = podPrefixes
	}

	l.Oracle.Update(func(r *leak.Rules) { r.Nodes = append(r.Nodes, n.Addrs...) })
	h, err := l.newHost(ctx, fmt.Sprintf("node-%d", number))
	if err != nil {
		return nil, err
	}

	n.Host = h
	l.mu.Lock()
	l.nodes = append(l.nodes, n)
	l.mu.Unlock()
	if n.atAPIServer() {
		if err := l.Control.registerNode(ctx, n); err != nil {
			return nil, err
		}
	}

	if err := n.writeDisk(ctx); err != nil {
		return nil, fmt.Errorf("%s: %w", n.Name, err)
	}
	if err := n.boot(ctx, !l.opts.NoBoot); err != nil {
		return nil, fmt.Errorf("%s: %w", n.Name, err)
	}
	if l.opts.Network == Clear {
		return n, l.clearRoutes(ctx)
	}

	return n, nil
}

// writeDisk writes the files of an installation to the node's disk.
func (n *Node) writeDisk(ctx context.Context) error {
	l := n.lab
	if l.opts.Network == Clear {
		return n.writeClear()
	}
	dir := filepath.Join(n.Disk(), "etc/kubeveil")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	source := map[string]any{"kind": "snapshot", "file": snapshotFile}
	if n.atAPIServer() {
		token, err := l.Control.token(ctx, n)
		ca, errCA := os.ReadFile(l.Control.pki("ca.crt"))
		config, errConfig := l.Control.kubeconfig()
		if err := errors.Join(err, errCA, errConfig); err != nil {
			return err
		}
		file := func(name string) string { return filepath.Join(dir, filepath.Base(name)) }
		if err := errors.Join(os.WriteFile(file(TokenFile), token, 0o600),
			os.WriteFile(file(kubeconfigFile), config, 0o600),
			os.WriteFile(file(authorityFile), ca, 0o644)); err != nil {
			return err
		}
		source = map[string]any{"kind": "kubernetes", "kubeconfig": kubeconfigFile}
	}

	settings := map[string]any{
		"node":          n.Name,
		"clusterRanges": l.opts.Family.ClusterRanges(),
		"serviceRanges": l.opts.Family.ServiceRanges(),
		"source":        source,
		"masquerade":    true,
		"cni": map[string]any{"confDir": "/etc/cni/net.d", "portmap": true,
			"bandwidth": true},
		"logLevel": "debug",
	}

	if l.opts.Sites {
		maps.Copy(settings, n.siteSettings())
	}
	maps.Copy(settings, l.opts.VeildConfig)
	switch _, known := l.opts.apiServers(); {
	case l.opts.Sites && !n.atAPIServer():
		delete(settings, "serviceProxy")
		delete(settings, "services")
	case known || l.opts.translates():
		placeServices(settings)
	}
	b, err := yaml.Marshal(settings)
	if err != nil {
		return err
	}

	return os.WriteFile(filepath.Join(dir, filepath.Base(ConfigFile)), b, 0o644)
}

// boot connects a node whose host has booted to the underlay and, if programs is set, starts the
// node's programs.
func (n *Node) boot(ctx context.Context, programs bool) error {
	// kubeadm's preflight checks require forwarding. Some distributions use the strict rp_filter.
	if err := n.Sysctl("net/ipv4/ip_forward", "1", "net/ipv6/conf/all/forwarding", "1",
		"net/ipv4/conf/all/rp_filter", "1", "net/ipv4/conf/default/rp_filter", "1",
		"net/ipv6/conf/default/accept_dad", "0"); err != nil {
		return err
	}

	if n.lab.opts.BootUnit {
		if _, err := n.Exec(ctx, n.lab.Program("veild"), "close", "--config",
			ConfigFile); err != nil {
			return err
		}
	}

	if n.lab.opts.MoreAddresses {
		if err := n.addMore(ctx); err != nil {
			return err
		}
	}

	if err := n.lab.plug(ctx, n.Host, n.Name, "eth0", n.underlay()); err != nil {
		return err
	}

	if n.lab.opts.MoreAddresses && n.lab.opts.Family.V6() {
		second := addressplan.At(addressplan.Underlay6, byte(addressplan.SecondHost+n.Number))
		if err := n.IP(ctx, labhost.AddrLines("eth0", []netip.Prefix{second})...); err != nil {
			return err
		}
	}

	// Like every node, it has a default route. Packets on this route reach only the outside host.
	for _, a := range n.lab.OutsideAddrs() {
		if err := n.IP(ctx, fmt.Sprintf("route add default via %s dev eth0", a)); err != nil {
			return err
		}
	}

	if !programs || n.lab.opts.Network != Veil {
		return nil
	}

	for _, name := range []string{"veil-wg", "veild"} {
		if _, err := n.StartProgram(ctx, name); err != nil {
			return err
		}
	}

	return nil
}

func (n *Node) underlay() []netip.Prefix {
	return n.lab.opts.Family.Underlay(byte(addressplan.NodeHost + n.Number))
}

// EngineEnv is the environment variable that sets the engine of userspace tunnels for labs without
// Options.Engine. It has the values of veil-wg --engine.
const EngineEnv = "KUBEVEIL_ENGINE"

// StartProgram starts "veild" or "veil-wg" on the node, with the arguments of an installation.
func (n *Node) StartProgram(ctx context.Context, name string) (*Process, error) {
	return n.StartProgramIn(ctx, name, nil)
}

// StartProgramIn is StartProgram with additions to the program's environment.
func (n *Node) StartProgramIn(ctx context.Context, name string, env []string) (*Process, error) {
	var args []string
	if name == "veild" {
		args = []string{"--config", ConfigFile}
	}
	// A veil-wg of another release may not have the flag.
	if name == "veil-wg" && n.ownPrograms() {
		args = []string{"--engine", cmp.Or(n.lab.opts.Engine, os.Getenv(EngineEnv),
			worker.EngineKubeveil)}
	}
	p, err := n.StartEnv(ctx, env, filepath.Join(n.programs(), name), args...)
	if err != nil {
		return nil, err
	}
	n.mu.Lock()
	n.processes[name] = p
	n.mu.Unlock()
	return p, nil
}

// UsePrograms makes later starts use the programs and CNI plugins in dir, for example of another
// release. Running programs are not changed. "" means the programs and plugins of the lab.
func (n *Node) UsePrograms(dir string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.bin = dir
}

// ownPrograms reports whether the node starts the programs of the lab.
func (n *Node) ownPrograms() bool { return n.programs() == n.lab.bin }

// programs returns the folder of the node's programs and plugins.
func (n *Node) programs() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.bin == "" {
		return n.lab.bin
	}
	return n.bin
}

// Program returns the process that StartProgram last started for the program called name, or nil if
// there is none.
func (n *Node) Program(name string) *Process {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.processes[name]
}

// Signal sends a signal to every process of the node whose program is called name, and returns the
// number of processes. It includes processes that the lab did not start.
func (n *Node) Signal(name string, s syscall.Signal) (int, error) {
	procs, err := n.Processes(name)
	if err != nil {
		return 0, err
	}
	for _, p := range procs {
		if err := p.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
			return 0, fmt.Errorf("%s: signal %s: %w", n.Name, name, err)
		}
	}
	return len(procs), nil
}

// WaitReady waits until the node accepts pods: its CNI configuration is written, and the plugin's
// STATUS succeeds.
func (n *Node) WaitReady(ctx context.Context) error {
	err := Until(ctx, 60*time.Second, func() error {
		if p := n.Program("veild"); p != nil && !p.Running() {
			return Stop(fmt.Errorf("veild has ended: %w: %s", p.Ended(), p.Tail()))
		}
		if n.lab.opts.Network == Veil {
			if _, err := os.Stat(n.Path(abi.ReadyFile)); err != nil {
				return err
			}
		}
		return n.Status(ctx)
	})
	if err != nil {
		return fmt.Errorf("wait for %s: %w", n.Name, err)
	}
	return nil
}

// Crash simulates a power loss. All processes, links, pods and memory of the node are lost. The
// disk stays.
func (n *Node) Crash() error {
	n.mu.Lock()
	n.pods = map[string]*Pod{}
	n.processes = map[string]*Process{}
	n.mu.Unlock()
	return n.Host.stop()
}

// Boot boots a crashed node. If programs is set, it also starts the programs, without waiting until
// they are ready.
func (n *Node) Boot(ctx context.Context, programs bool) error {
	if err := n.Host.Boot(ctx); err != nil {
		return fmt.Errorf("boot %s: %w", n.Name, err)
	}
	if err := n.boot(ctx, programs); err != nil {
		return fmt.Errorf("boot %s: %w", n.Name, err)
	}
	if n.lab.opts.Network == Clear {
		return n.lab.clearRoutes(ctx)
	}
	return nil
}

// Reboot crashes the node and boots it with its programs.
func (n *Node) Reboot(ctx context.Context) error {
	if err := n.Crash(); err != nil {
		return err
	}
	return n.Boot(ctx, true)
}

// HasConflist reports whether a CNI configuration is on the node's disk.
func (n *Node) HasConflist() (bool, error) {
	entries, err := os.ReadDir(filepath.Join(n.Disk(), "etc/cni/net.d"))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return len(entries) > 0, err
}
