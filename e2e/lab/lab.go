package lab

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/kubeveil/kubeveil/e2e/lab/addressplan"
	"github.com/kubeveil/kubeveil/e2e/lab/buildtree"
	"github.com/kubeveil/kubeveil/e2e/lab/etcd"
	"github.com/kubeveil/kubeveil/e2e/lab/labhost"
	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/cluster"
	"github.com/kubeveil/kubeveil/pkg/leak"
)

// Family is the set of address families of a lab. Nodes, pods and services have the same families.
type Family = addressplan.Family

// Families of a lab.
const (
	IPv4 = addressplan.IPv4
	IPv6 = addressplan.IPv6
	Dual = addressplan.Dual
)

// Network is the program that connects pods.
type Network string

const (
	// Veil is Kubeveil, the program under test.
	Veil Network = "veil"
	// Clear is the reference network: the plugins ptp and host-local, with plain routes between the
	// nodes. It encrypts nothing, so the oracle must report its traffic.
	Clear Network = "clear"
)

// Options configures a lab. The zero value means two dual-stack nodes of Kubeveil with MTU 1500,
// and an API server.
type Options struct {
	// Nodes is the number of nodes that New makes and boots. 0 means two, a negative number none.
	Nodes int
	// Family is the address family. Empty means Dual.
	Family Family
	// Network is the program that connects pods. Empty means Veil.
	Network Network
	// UnderlayMTU is the MTU between nodes in bytes. 0 means 1500.
	UnderlayMTU int
	// APIServers is the number of API servers. 0 means one. Each has a separate host, see
	// Server.Unplug. All use the etcd of the first.
	APIServers int
	// APIServerFlags returns additional flags of API server i; the first server is 0. They follow
	// the flags of the lab, and the last value of a flag counts. Nil means no additional flags.
	APIServerFlags func(i int) []string
	// Streams runs an etcd with which the API server serves streaming lists, as in a cluster of
	// today, in place of Debian's etcd.
	Streams bool
	// NoAPIServer leaves out etcd and kube-apiserver. veild then reads snapshot files, see
	// Introduce. A Clear lab never has an API server.
	NoAPIServer bool
	// Sites makes each node the only node of its own cluster, and each other node the only node of
	// a site with reach: all. The first node reads the API server, if there is one. Other nodes
	// read snapshots, so they have no settings of VeildConfig that need an API server.
	Sites bool
	// ExportsOnly leaves the sites of the first node at their default reach: exports only. It
	// needs Sites.
	ExportsOnly bool
	// Beside is another lab, with an API server and nodes of Kubeveil. The new lab is a second
	// cluster on its network, with another API server and no nodes at first. Both share the family,
	// the oracle, the host outside, and the canaries. Close the new lab first. VeildConfig of both
	// should have the ranges of addressplan.Family.Parts. Nil means a network of its own.
	Beside *Lab
	// Pool lends the lab a control plane, and gets it back at the end. Nil means that the lab
	// starts its own control plane.
	Pool *Pool
	// Offloads keeps the segmentation offloads of the underlay's links, for benchmarks. The oracle
	// then sees frames larger than on a real wire, and does not see fragments.
	Offloads bool
	// Dir is the folder for artefacts. Empty means a new folder in out/lab, where only the folders
	// of the last runs are kept.
	Dir string
	// VeildConfig holds settings that override the lab's configuration of veild, with keys as in
	// its file.
	VeildConfig map[string]any
	// Engine is the engine of userspace tunnels, as in veil-wg --engine. Empty means the value of
	// EngineEnv or, if that is empty, Kubeveil's own engine.
	Engine string
	// MoreAddresses adds addresses to each node that its Node object does not list and that the
	// kernel may select as source addresses, see Node.addMore.
	MoreAddresses bool
	// BootUnit runs veild close before a node's network is up, as an installation's unit does.
	BootUnit bool
	// NoBoot makes nodes without starting their programs.
	NoBoot bool
	// Log logs the steps of the lab. Nil discards the messages.
	Log *slog.Logger
}

// Lab is a cluster on one machine. Its methods may be called from several goroutines,
// except Finish and Close.
type Lab struct {
	// Dir is the folder of artefacts. It has a folder for each host, with its logs and disk.
	Dir string
	// Canary is a string in all payloads within the cluster. EgressCanary is a string in payloads
	// to and from Outside.
	Canary, EgressCanary string
	// Outside is a host that does not belong to the cluster and has no route into it.
	Outside *Host
	// Oracle watches every link of the underlay.
	Oracle *leak.Oracle
	// Control is the control plane; nil in a lab without an API server.
	Control *Control

	opts    Options
	bin     string
	log     *slog.Logger
	bridge  *Host
	mu      sync.Mutex
	nodes   []*Node
	hosts   []*Host // made by AddHost
	numbers int
	// rows are the nodes in the last snapshots. announced are the nodes among them that Announce
	// added.
	rows, announced []cluster.Node

	done   bool
	result leak.Result
}

// BridgeLink is the name of the bridge, the hostile network, in the host Bridge.
const BridgeLink = "br0"

// New makes a lab and boots its nodes. It must run as root. After an error, it removes everything
// except the artefacts.
func New(ctx context.Context, opts Options) (*Lab, error) {
	if err := opts.fill(); err != nil {
		return nil, err
	}
	if os.Geteuid() != 0 {
		return nil, errors.New("make a lab: not root")
	}
	root, err := buildtree.Root()
	if err != nil {
		return nil, err
	}
	if err := buildtree.Build(); err != nil {
		return nil, err
	}
	l := &Lab{opts: opts, bin: filepath.Join(root, "out/bin"), log: opts.Log, Dir: opts.Dir,
		Canary: canary("pod"), EgressCanary: canary("egress")}
	if l.Dir == "" {
		if l.Dir, err = labhost.NewRun(filepath.Join(root, "out/lab")); err != nil {
			return nil, fmt.Errorf("make a lab: %w", err)
		}
	}
	if err := l.make(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("make a lab: %w (logs in %s)", err, l.Dir), l.Close())
	}
	return l, nil
}

func (o *Options) fill() error {
	if o.Beside != nil {
		o.joinNetwork()
	}
	o.Nodes = cmp.Or(o.Nodes, 2)
	if o.Nodes > addressplan.MaxNodes {
		return fmt.Errorf("make a lab: %d nodes: at most %d", o.Nodes, addressplan.MaxNodes)
	}
	if o.APIServers > addressplan.MaxServers {
		return fmt.Errorf("make a lab: %d API servers: at most %d", o.APIServers,
			addressplan.MaxServers)
	}
	o.APIServers = max(1, o.APIServers)
	o.Family, o.Network = cmp.Or(o.Family, Dual), cmp.Or(o.Network, Veil)
	o.UnderlayMTU = cmp.Or(o.UnderlayMTU, 1500)
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	return o.Family.Valid()
}

// canary returns a random string that does not occur by chance.
func canary(kind string) string {
	b := make([]byte, 12)
	_, _ = rand.Read(b) // never fails (crypto/rand)
	return "kubeveil-canary-" + kind + "-" + hex.EncodeToString(b) + "-"
}

// make makes the parts of the lab in this order: network, oracle, control plane, nodes.
func (l *Lab) make(ctx context.Context) error {
	start := time.Now()
	if err := os.MkdirAll(l.Dir, 0o755); err != nil {
		return err
	}
	if err := l.makeNetwork(ctx); err != nil {
		return err
	}

	if l.opts.Network == Veil && !l.opts.NoAPIServer {
		if err := l.newControl(ctx); err != nil {
			return fmt.Errorf("control plane: %w", err)
		}
		l.log.Info("API server is ready", "after", time.Since(start).Round(time.Millisecond))
	}

	for range max(l.opts.Nodes, 0) {
		if _, err := l.AddNode(ctx); err != nil {
			return err
		}
	}

	if l.opts.NoBoot {
		return nil
	}
	if l.opts.introduces() {
		if err := l.Introduce(ctx); err != nil {
			return err
		}
	}
	for _, n := range l.Nodes() {
		if err := n.WaitReady(ctx); err != nil {
			return err
		}
	}

	l.log.Info("lab is ready", "after", time.Since(start).Round(time.Millisecond), "dir", l.Dir)
	return nil
}

// makeNetwork makes the network between hosts and the host outside, or joins those of
// Options.Beside.
func (l *Lab) makeNetwork(ctx context.Context) error {
	if l.opts.Beside != nil {
		l.joinNetwork()
		return nil
	}
	if err := l.makeBridge(ctx); err != nil {
		return err
	}
	var err error
	if l.Outside, err = l.newHost(ctx, "outside"); err != nil {
		return err
	}
	return l.plug(ctx, l.Outside, "outside", "eth0",
		l.opts.Family.Underlay(addressplan.OutsideHost))
}

// makeBridge makes the hostile network and starts the oracle on it.
func (l *Lab) makeBridge(ctx context.Context) error {
	var err error
	if l.bridge, err = l.newHost(ctx, "bridge"); err != nil {
		return err
	}

	// The bridge's host must not send packets of its own.
	if err := l.bridge.Sysctl("net/ipv6/conf/default/disable_ipv6", "1",
		"net/ipv6/conf/all/disable_ipv6", "1"); err != nil {
		return err
	}

	_ = l.bridge.Sysctl("net/bridge/bridge-nf-call-iptables", "0",
		"net/bridge/bridge-nf-call-ip6tables", "0", "net/bridge/bridge-nf-call-arptables", "0")
	err = l.bridge.IP(ctx,
		"link add "+BridgeLink+" type bridge mcast_snooping 0 stp_state 0 forward_delay 0",
		"link set "+BridgeLink+" mtu "+fmt.Sprint(l.opts.UnderlayMTU),
	)
	if err != nil {
		return err
	}

	l.Oracle, err = leak.Start(l.bridge.NetNS(), l.rules())
	if err != nil {
		return err
	}
	if err := l.Oracle.Watch(BridgeLink); err != nil {
		return err
	}

	// With a promiscuous bridge, the oracle also sees the frames that are forwarded between ports.
	return l.bridge.IP(ctx, "link set "+BridgeLink+" promisc on up")
}

// rules returns the rules of the oracle for a lab without nodes.
func (l *Lab) rules() leak.Rules {
	f := l.opts.Family
	r := leak.Rules{
		Inner:        slices.Concat(f.ClusterRanges(), f.ServiceRanges(), f.AddedRanges()),
		TunnelPort:   abi.TunnelPort,
		Canary:       []byte(l.Canary),
		EgressCanary: []byte(l.EgressCanary),
		Outside:      addressplan.AddrsOf(f.Underlay(addressplan.OutsideHost)),
	}
	if !l.opts.Offloads {
		r.MaxFrame = l.opts.UnderlayMTU + ethernetHeader
	}
	if l.opts.NoAPIServer && l.opts.introduces() {
		return r
	}
	r.Flows = l.serverFlows()
	if l.opts.APIServers > 1 {
		r.Flows = append(r.Flows, leak.Flow{Name: "etcd", Proto: leak.TCP,
			Addr: f.Underlay(addressplan.ControlHost)[0].Addr(), Port: etcd.Port})
	}
	return r
}

// ethernetHeader is the length of a frame's header without VLAN tags.
const ethernetHeader = 14

// Nodes returns the lab's nodes in the order in which they were made.
func (l *Lab) Nodes() []*Node {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]*Node(nil), l.nodes...)
}

// Family returns the lab's address family.
func (l *Lab) Family() Family { return l.opts.Family }

// OutsideAddrs returns the addresses of Outside, IPv4 first.
func (l *Lab) OutsideAddrs() []netip.Addr {
	return addressplan.AddrsOf(l.opts.Family.Underlay(addressplan.OutsideHost))
}

// Finish removes every node and the control plane, then ends the oracle and returns its result. The
// error lists the parts that could not be removed. A second call returns the same result.
func (l *Lab) Finish() (leak.Result, error) {
	if l.done {
		return l.result, nil
	}
	l.done = true
	returns := l.Control.returns()
	errs := l.stopHosts(!returns)
	if returns {
		errs = append(errs, l.Control.host.unplug())
	}
	if l.opts.Beside == nil && l.Oracle != nil {
		var err error
		l.result, err = l.Oracle.Stop()
		errs = append(errs, err)
	}
	if l.opts.Beside == nil && l.bridge != nil {
		errs = append(errs, l.bridge.stop())
	}
	if returns {
		errs = append(errs, l.opts.Pool.put(l.Control))
	}
	return l.result, errors.Join(errs...)
}

// stopHosts stops all hosts except the bridge. It stops them concurrently, because each mostly
// waits for the kernel. It stops the control plane only if control is set.
func (l *Lab) stopHosts(control bool) []error {
	hosts := slices.Clone(l.hosts)
	for _, n := range l.Nodes() {
		hosts = append(hosts, n.Host)
	}
	if control && l.Control != nil {
		hosts = append(hosts, l.Control.host)
	}
	if l.Outside != nil && l.opts.Beside == nil {
		hosts = append(hosts, l.Outside)
	}
	return stopAll(hosts)
}

// stopAll kills the processes of all hosts, and then stops the hosts.
func stopAll(hosts []*Host) []error {
	below := make([]*labhost.Host, len(hosts))
	for i, h := range hosts {
		below[i] = h.Host
	}
	labhost.KillAll(below...)

	errs := make([]error, len(hosts))
	var all sync.WaitGroup
	for i, h := range hosts {
		all.Go(func() { errs[i] = h.stop() })
	}
	all.Wait()
	return errs
}

// Close removes the lab, except its artefacts. It may be called after Finish.
func (l *Lab) Close() error {
	_, err := l.Finish()
	return err
}
