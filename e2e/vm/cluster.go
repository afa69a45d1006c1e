package vm

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/kubeveil/kubeveil/e2e/lab"
	"github.com/kubeveil/kubeveil/e2e/lab/buildtree"
	"github.com/kubeveil/kubeveil/e2e/lab/labhost"
	"github.com/kubeveil/kubeveil/e2e/vm/hostnode"
	"github.com/kubeveil/kubeveil/e2e/vm/image"
	"github.com/kubeveil/kubeveil/pkg/leak"
)

// ClusterConfig lists the parts of a cluster. The zero value is two nodes at MTU 1500 with
// Kubernetes and Kubeveil.
type ClusterConfig struct {
	// Nodes is the number of machines; 0 means two.
	Nodes int
	// Accel forces a way to run machines; empty tries KVM.
	Accel Accel
	// UnderlayMTU is the MTU between machines, bytes; 0 means 1500.
	UnderlayMTU int
	// Userspace are the numbers of machines whose kernel's WireGuard cannot be loaded.
	Userspace []int
	// Images are further archives of images for the machines, beside the lab's own and Kubeveil's.
	Images []string
	// Kernel is the release of the machines' Linux, such as "6.12". Empty means the value of
	// KernelEnv, and without it Debian's default.
	Kernel string
	// Bare leaves out Kubernetes and Kubeveil: machines that answer ssh.
	Bare bool
	// QEMU are more arguments of the first machine's qemu, such as further disks.
	QEMU []string
	// NoVeil leaves out Kubeveil: nodes that wait for a network.
	NoVeil bool
	// ServiceProxy chooses the program that translates services. config.ServiceProxyNone or ""
	// means kube-proxy. config.ServiceProxyEBPF means Kubeveil; no node then has a kube-proxy, from
	// the beginning.
	ServiceProxy string
	// ProxyMode is the mode of the machines' kube-proxy: "" is ProxyNFTables.
	ProxyMode string
	// HostRouting chooses the path of packets to the pods of a node: config.HostRoutingKernel or ""
	// means the kernel, config.HostRoutingEBPF the programs that translate services.
	HostRouting string
	// Policy chooses the network policies that Kubeveil enforces: config.PolicyNone or "" means
	// none, config.PolicyKubernetes the policies of Kubernetes, on every node from the beginning.
	Policy string
	// Dir is the folder for artefacts. Empty means a new one under out/vm, which keeps the folders
	// of the last runs.
	Dir string
	// Log receives the steps; nil discards them.
	Log *slog.Logger
}

// Cluster is a set of machines and their control plane. Its methods may be called from several
// goroutines, except Close.
type Cluster struct {
	// Dir is the folder of artefacts.
	Dir string
	// Lab is the network, with its Oracle.
	Lab *lab.Lab
	// Control is the host of the control plane, from which machines are reached.
	Control *lab.Host
	// Machines are the nodes that are there, first to last; Join and Leave change it.
	Machines []*Machine
	// Accel is how they run.
	Accel Accel

	opts  ClusterConfig
	root  string
	log   *slog.Logger
	start time.Time
	token string
	// forward is the port on loopback that Kubeconfig names.
	forward net.Listener
	// slot is held while the cluster runs.
	slot *os.File
	// version is the version of Kubernetes, as kubeadm prints it.
	version string
	// dnsTag is the tag of CoreDNS's image.
	dnsTag string
	// images are archives of what every machine's containerd has.
	images []string
	// made is how many machines there have been.
	made int
	// host is the control plane's host as a node, api its API server.
	host *hostnode.Host
	api  *lab.Process
	// second is made by SecondAPI.
	second *APIServer
}

// KernelEnv names the variable with the release of Linux that machines boot, such as 6.12. Unset or
// empty means the kernel of the default disk. The Makefile sets it from KERNEL.
const KernelEnv = "KUBEVEIL_VM_KERNEL"

// New makes a cluster. It needs root. On error nothing is left but artefacts.
func New(ctx context.Context, opts ClusterConfig) (*Cluster, error) {
	if opts.Nodes == 0 {
		opts.Nodes = 2
	}
	if opts.UnderlayMTU == 0 {
		opts.UnderlayMTU = 1500
	}
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}

	if err := opts.check(); err != nil {
		return nil, fmt.Errorf("make a cluster: %w", err)
	}

	if opts.Kernel == "" {
		opts.Kernel = os.Getenv(KernelEnv)
	}
	root, err := buildtree.Root()
	if err != nil {
		return nil, err
	}

	c := &Cluster{opts: opts, root: root, log: opts.Log, Dir: opts.Dir, start: time.Now()}
	if c.Dir == "" {
		if c.Dir, err = labhost.NewRun(filepath.Join(root, "out/vm")); err != nil {
			return nil, fmt.Errorf("make a cluster: %w", err)
		}
	}

	if err := c.make(ctx); err != nil {
		_, end := c.Close()
		return nil, errors.Join(fmt.Errorf("make a cluster: %w (logs in %s)", err, c.Dir), end)
	}

	return c, nil
}

func (c *Cluster) make(ctx context.Context) error {
	if err := c.need(); err != nil {
		return err
	}
	if err := c.takeSlot(ctx); err != nil {
		return err
	}
	if err := os.MkdirAll(c.Dir, 0o755); err != nil {
		return err
	}

	if err := c.makeNetwork(ctx); err != nil {
		return err
	}
	if c.opts.translates() {
		if err := c.checkCgroup(); err != nil {
			return err
		}
	}

	if err := c.makeKeys(ctx); err != nil {
		return err
	}
	var err error
	if c.Accel, err = c.probeAccel(ctx); err != nil {
		return err
	}

	c.step("network is ready", "accel", c.Accel)
	if !c.opts.Bare {
		if err := c.collectImages(ctx); err != nil {
			return err
		}
		if err := c.makeShared(ctx); err != nil {
			return err
		}
	}

	for range c.opts.Nodes {
		m, err := c.addMachine(ctx)
		if err != nil {
			return err
		}
		c.Machines = append(c.Machines, m)
		if err := m.Start(ctx); err != nil {
			return err
		}
	}

	if c.opts.Bare {
		return c.each(func(m *Machine) error { return m.WaitSSH(ctx) })
	}

	// While they boot.
	return c.makeKubernetes(ctx)
}

// makeNetwork makes the network and the control plane's host.
func (c *Cluster) makeNetwork(ctx context.Context) (err error) {
	c.Lab, err = lab.New(ctx, lab.Options{Nodes: -1, NoAPIServer: true,
		UnderlayMTU: c.opts.UnderlayMTU, Dir: filepath.Join(c.Dir, "net"), Log: c.log})
	if err != nil {
		return err
	}

	// The lab already allows the flow to the API server.
	c.Lab.Oracle.Update(func(r *leak.Rules) { r.Nodes = append(r.Nodes, c.controlAddrs()...) })
	c.Control, err = c.Lab.AddHost(ctx, "control", lab.ControlByte)
	return err
}

// each does the same to all machines at once.
func (c *Cluster) each(do func(*Machine) error) error {
	done := make(chan error, len(c.Machines))
	for _, m := range c.Machines {
		go func() { done <- do(m) }()
	}
	var errs []error
	for range c.Machines {
		errs = append(errs, <-done)
	}
	return errors.Join(errs...)
}

// need returns an error that lists what is missing and how to get it.
func (c *Cluster) need() error {
	disk := "hack/vm/image.sh"
	if c.opts.Kernel != "" {
		disk = KernelEnv + "=" + c.opts.Kernel + " " + disk
	}
	for _, need := range [][2]string{
		{c.image("root.ext4"), disk},
		{c.program("kubelet"), "hack/build-kubernetes.sh all"},
		{c.program("containerd"), "hack/build-node.sh"},
		{c.program("coredns"), "hack/build-node.sh"},
		{filepath.Join(c.root, veilImage), "go run ./hack/image"},
	} {
		if _, err := os.Stat(need[0]); errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("%s is missing: run `%s` first", need[0], need[1])
		}
	}
	return nil
}

// makeKeys makes the ssh keys of this cluster alone.
func (c *Cluster) makeKeys(ctx context.Context) error {
	for _, name := range []string{"ssh", "host"} {
		out, err := exec.CommandContext(ctx, "ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C",
			"lab", "-f", c.file(name)).CombinedOutput()
		if err != nil {
			return fmt.Errorf("make ssh key: %w: %s", err, out)
		}
	}
	public, err := os.ReadFile(c.file("host.pub"))
	if err != nil {
		return err
	}
	return os.WriteFile(c.file("known_hosts"), []byte("node "+string(public)), 0o644)
}

// seed returns the content that makes a machine this one.
func (c *Cluster) seed(m *Machine) image.Seed {
	var network strings.Builder
	network.WriteString(
		"[Match]\nName=eth0\n\n[Network]\nDHCP=no\nIPv6AcceptRA=no\nLinkLocalAddressing=ipv6\n")
	for _, p := range c.Lab.Family().Underlay(lab.NodeByte(m.Number)) {
		fmt.Fprintf(&network, "Address=%s\n", p)
	}

	// A default route, as every node has one and kubelets require it. It reaches only the outside
	// host.
	for _, a := range c.Lab.OutsideAddrs() {
		fmt.Fprintf(&network, "Gateway=%s\n", a)
	}

	s := image.Seed{
		"/etc/systemd/network/10-eth0.network": {Content: network.String()},
		"/etc/hosts": {Content: "127.0.0.1 localhost\n::1 localhost\n" +
			m.Addrs[0].String() + " " + m.Name + "\n"},
		"/root/.ssh/authorized_keys": {From: c.file("ssh.pub"), Mode: 0o600},
		"/etc/ssh/lab_host_ed25519":  {From: c.file("host"), Mode: 0o600},
	}

	// A name server that does not answer, as for a cluster without a way out.
	s["/etc/resolv.conf"] = image.File{Content: "nameserver " + c.Lab.OutsideAddrs()[0].String() +
		"\n"}
	if slices.Contains(c.opts.Userspace, m.Number) {
		s["/etc/modprobe.d/no-wireguard.conf"] = image.File{
			Content: "install wireguard /bin/false\n"}
	}

	if !c.opts.Bare {
		if m.hasContainerd2() {
			maps.Copy(s, containerd2Seed())
		}
		s["/etc/systemd/system/containerd.service.d/lab.conf"] = image.File{Content: storeUnit}
		for _, name := range []string{"kubelet", "kubeadm"} {
			s["/usr/bin/"+name] = image.File{Link: sharedDir + name}
		}
	}

	return s
}

// step logs progress.
func (c *Cluster) step(message string, facts ...any) {
	c.log.Info(message, append(facts, "after", time.Since(c.start).Round(100*time.Millisecond))...)
}

func (c *Cluster) file(name string) string    { return filepath.Join(c.Dir, name) }
func (c *Cluster) program(name string) string { return filepath.Join(c.root, "out/bin", name) }

// image returns the path of a file that hack/vm/image.sh made: the disk, its kernel, its initrd.
func (c *Cluster) image(name string) string {
	return filepath.Join(imageDir(c.root, c.opts.Kernel), name)
}

// imageDir returns the folder of the disk with a release of Linux, the default one if it is "".
func imageDir(root, release string) string {
	if release == "" {
		return filepath.Join(root, "out/vm")
	}
	return filepath.Join(root, "out/vm", "linux-"+release)
}

// Close takes the power from the machines, ends everything else, and returns what the oracle saw.
// Artefacts stay, except disks. A second call returns the same.
func (c *Cluster) Close() (leak.Result, error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var errs []error
	if c.forward != nil {
		errs = append(errs, c.forward.Close())
		c.forward = nil
	}

	c.host.Stop()
	for _, m := range c.Machines {
		errs = append(errs, m.Off(ctx))
	}

	if err := os.Remove(c.file(sharedDisk)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		errs = append(errs, err)
	}

	var result leak.Result
	if c.Lab != nil {
		var err error
		result, err = c.Lab.Finish()
		errs = append(errs, err)
	}

	for _, m := range c.Machines {
		errs = append(errs, m.removeDisks())
	}

	if c.slot != nil {
		errs = append(errs, c.slot.Close())
		c.slot = nil
	}

	return result, errors.Join(errs...)
}
