package vm

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kubeveil/kubeveil/e2e/lab"
	"github.com/kubeveil/kubeveil/e2e/lab/buildtree"
	"github.com/kubeveil/kubeveil/e2e/lab/labhost"
	"github.com/kubeveil/kubeveil/e2e/vm/hostnode"
	"github.com/kubeveil/kubeveil/e2e/vm/image"
	"github.com/kubeveil/kubeveil/e2e/vm/qemu"
	"github.com/kubeveil/kubeveil/pkg/leak"
)

// ClusterConfig selects the parts of a cluster. The zero value means two nodes with MTU 1500,
// Kubernetes and Kubeveil.
type ClusterConfig struct {
	// Nodes is the number of machines. The value 0 means two.
	Nodes int
	// UnderlayMTU is the MTU between machines in bytes. The value 0 means 1500.
	UnderlayMTU int
	// Userspace lists the numbers of the machines on which the kernel's WireGuard cannot be loaded.
	Userspace []int
	// Images lists further archives of images for the machines, in addition to the archives of the
	// lab and of Kubeveil.
	Images []string
	// Kernel is the release of the machines' Linux, such as "6.12". Empty means the value of
	// KernelEnv. If that is empty too, the machines boot Debian's default kernel.
	Kernel string
	// Bare leaves out Kubernetes and Kubeveil. The machines only answer ssh.
	Bare bool
	// QEMU lists further arguments for the qemu of the first machine, such as disks.
	QEMU []string
	// NoVeil leaves out Kubeveil. The nodes are not Ready, because they have no network.
	NoVeil bool
	// ServiceProxy chooses the program that translates services. config.ServiceProxyNone or ""
	// means kube-proxy. config.ServiceProxyEBPF means Kubeveil. A kube-proxy is then never
	// installed.
	ServiceProxy string
	// ProxyMode is the mode of the machines' kube-proxy. Empty means ProxyNFTables.
	ProxyMode string
	// HostRouting chooses the path of packets to the pods of a node. config.HostRoutingKernel or ""
	// means the kernel. config.HostRoutingEBPF means the programs that translate services.
	HostRouting string
	// Policy chooses the network policies that Kubeveil enforces. config.PolicyNone or "" means
	// none. config.PolicyKubernetes means the policies of Kubernetes, on every node from the
	// beginning.
	Policy string
	// Dir is the folder for artefacts. Empty means a new folder in out/vm, which keeps the folders
	// of the last runs.
	Dir string
	// Log receives the steps. If Log is nil, the steps are not logged.
	Log *slog.Logger
}

// Cluster is a set of machines and their control plane. Its methods may be called from several
// goroutines at the same time, except Join, Leave, SecondAPI and Close, which change it: no other
// method may run meanwhile.
type Cluster struct {
	// Dir is the folder of artefacts.
	Dir string
	// Lab is the network, with its Oracle.
	Lab *lab.Lab
	// Control is the host of the control plane, from which machines are reached.
	Control *lab.Host
	// Machines lists the current machines in the order in which they were made. Join and Leave
	// change the list.
	Machines []*Machine
	// Accel is how the machines are run.
	Accel qemu.Accel

	opts  ClusterConfig
	place place
	root  string
	log   *slog.Logger
	start time.Time
	token string
	// forward is the port on loopback that Kubeconfig names.
	forward net.Listener
	// slot is the lock file that takeSlot locked. It stays locked while the cluster runs.
	slot *os.File
	// version is the version of Kubernetes, as kubeadm prints it.
	version string
	// dnsTag is the tag of CoreDNS's image.
	dnsTag string
	// images lists the archives of the images that the containerd of every machine has.
	images []string
	// made counts the machines that have been made, including those that left.
	made int
	// host is the control plane's host as a node. hostBin is the folder of its programs of Kubeveil,
	// or nil for out/bin. api is its API server.
	host    *hostnode.Host
	hostBin atomic.Pointer[string]
	api     *lab.Process
	// second is the second API server, or nil before SecondAPI.
	second *APIServer
}

// KernelEnv is the name of the environment variable with the release of Linux that machines boot,
// such as 6.12. If it is unset or empty, they boot the kernel of the default disk. The Makefile
// sets it from KERNEL.
const KernelEnv = "KUBEVEIL_VM_KERNEL"

// New makes a cluster. It needs root. After an error only the artefacts are left.
func New(ctx context.Context, opts ClusterConfig) (*Cluster, error) {
	return newCluster(ctx, opts, place{})
}

func newCluster(ctx context.Context, opts ClusterConfig, at place) (*Cluster, error) {
	opts.Nodes = cmp.Or(opts.Nodes, 2)
	opts.UnderlayMTU = cmp.Or(opts.UnderlayMTU, 1500)
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

	c := &Cluster{opts: opts, place: at, root: root, log: opts.Log, Dir: opts.Dir,
		made: at.machines(), start: time.Now()}
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
	if err := c.chooseAccel(ctx); err != nil {
		return err
	}

	c.step("network is ready", "accel", c.Accel)
	if c.place.second {
		c.version, c.dnsTag = c.place.first.version, c.place.first.dnsTag
	} else if !c.opts.Bare {
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

	// Kubernetes is made while the machines boot.
	return c.makeKubernetes(ctx)
}

// chooseAccel sets Accel.
func (c *Cluster) chooseAccel(ctx context.Context) error {
	if c.place.second {
		c.Accel = c.place.first.Accel
		return nil
	}
	accel, why, err := qemu.Probe(ctx, c.Lab.Bridge().Host, c.image("vmlinuz"), c.image("initrd"),
		c.file("probe-kvm.log"))
	if why != nil {
		c.log.Info("KVM does not run a stock kernel: emulating", "reason", why)
	}
	c.Accel = accel
	return err
}

// makeNetwork makes the network and the control plane's host.
func (c *Cluster) makeNetwork(ctx context.Context) (err error) {
	if c.place.second {
		return c.joinNetwork(ctx)
	}

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

// each runs do for all machines concurrently and joins the errors.
func (c *Cluster) each(do func(*Machine) error) error {
	errs := make([]error, len(c.Machines))
	var all sync.WaitGroup
	for i, m := range c.Machines {
		all.Go(func() { errs[i] = do(m) })
	}
	all.Wait()
	return errors.Join(errs...)
}

// need returns an error that names a missing file and the command that makes it.
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

// step logs progress.
func (c *Cluster) step(message string, facts ...any) {
	c.log.Info(message, append(facts, "after", time.Since(c.start).Round(100*time.Millisecond))...)
}

func (c *Cluster) file(name string) string    { return filepath.Join(c.Dir, name) }
func (c *Cluster) program(name string) string { return filepath.Join(c.root, "out/bin", name) }

// UseHostPrograms makes the control plane's host start veild and veil-wg in the folder dir from now
// on, such as the programs of another release. An empty dir means the programs of this tree.
func (c *Cluster) UseHostPrograms(dir string) { c.hostBin.Store(&dir) }

// hostProgram returns the path of a program that runs on the control plane's host.
func (c *Cluster) hostProgram(name string) string {
	if dir := c.hostBin.Load(); dir != nil && *dir != "" && strings.HasPrefix(name, "veil") {
		return filepath.Join(*dir, name)
	}
	return c.program(name)
}

// image returns the path of a file that hack/vm/image.sh made: the disk, its kernel or its initrd.
func (c *Cluster) image(name string) string {
	return filepath.Join(imageDir(c.root, c.opts.Kernel), name)
}

// imageDir returns the folder of the disk with a release of Linux. If release is empty, it returns
// the folder of the default disk.
func imageDir(root, release string) string {
	if release == "" {
		return filepath.Join(root, "out/vm")
	}
	return filepath.Join(root, "out/vm", "linux-"+release)
}

// Close turns the machines off, ends everything else, and returns the oracle's result. Artefacts
// stay, except disks. A second call returns the same result.
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

	if err := os.Remove(c.file(image.SharedDisk)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		errs = append(errs, err)
	}

	var result leak.Result
	if c.Lab != nil && !c.place.second {
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
