package node

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/cluster"
	"github.com/kubeveil/kubeveil/pkg/config"
	"github.com/kubeveil/kubeveil/pkg/firewall"
	"github.com/kubeveil/kubeveil/pkg/guard"
	"github.com/kubeveil/kubeveil/pkg/hostnet"
	"github.com/kubeveil/kubeveil/pkg/hostnet/underlay"
	"github.com/kubeveil/kubeveil/pkg/rootfs"
	services "github.com/kubeveil/kubeveil/pkg/service/keeper"
	"github.com/kubeveil/kubeveil/pkg/service/probe"
)

// capNetAdmin is CAP_NET_ADMIN of capabilities(7).
const capNetAdmin = 12

// Check returns one joined error with everything that this machine lacks for veild and everything
// that conflicts with veild. It changes nothing.
func Check(cfg config.Config) error {
	err := errors.Join(checkMachine(cfg), checkOtherCNI(cfg.CNI.ConfDir))
	if cfg.ServiceProxy == config.ServiceProxyEBPF {
		err = errors.Join(err, probe.Check(cfg))
	}
	return err
}

// checkMachine checks only what Close needs. Any other problem must not keep a node from being
// closed.
func checkMachine(cfg config.Config) error {
	var errs []error
	if err := checkCapability(); err != nil {
		errs = append(errs, err)
	}
	var fs unix.Statfs_t
	if err := unix.Statfs("/sys/fs/bpf", &fs); err != nil || fs.Type != unix.BPF_FS_MAGIC {
		errs = append(errs,
			errors.New("/sys/fs/bpf is not a BPF file system: mount -t bpf bpf /sys/fs/bpf"))
	}
	errs = append(errs, guard.Check(abi.BPFDir))
	if cfg.Tunnel.Mode == config.ModeUserspace {
		if _, err := os.Stat("/dev/net/tun"); err != nil {
			errs = append(errs, fmt.Errorf("no TUN for tunnel.mode userspace: %w: load the module "+
				"tun, or give the container /dev/net/tun", err))
		}
	}
	return errors.Join(errs...)
}

// Notes returns sentences about the link between nodes, the MTU of pods and the kind of WireGuard,
// and warnings. It returns an error if the link cannot carry a tunnel. It changes nothing.
func Notes(cfg config.Config) ([]string, error) {
	notes := slices.Concat([]string{wireGuardNote()}, firewallNotes("/proc"),
		storageNotes(cfg.CNI.ConfDir))
	if cfg.ServiceProxy != config.ServiceProxyEBPF && cfg.APIPath() {
		if err := probe.Check(cfg); err != nil {
			notes = append(notes, "warning: "+services.NoAPIPath(err))
		}
	}
	h, err := hostnet.Open()
	if err != nil {
		return notes, err
	}
	defer h.Close()
	u, err := h.Underlay(nil, nil)
	if err != nil {
		return notes, err
	}

	mtu, outer6 := u.MTU, !cluster.Node{Addresses: u.Addrs}.AddressFamilies().V4
	from := fmt.Sprintf("%s carries the traffic between nodes: MTU %d", u.Name, mtu)
	if cfg.MTU > 0 {
		mtu = cfg.MTU
		from += fmt.Sprintf(", by the configuration %d", mtu)
	}

	pods, err := cluster.TunnelMTU(mtu, outer6, cfg.Families())
	if err != nil {
		return notes, fmt.Errorf("%s: %w", u.Name, err)
	}

	notes = append(notes, fmt.Sprintf("%s; pods get %d", from, pods))
	if wide := WideMTU(cfg.MTU, u); wide != "" {
		notes = append(notes, "warning: "+wide)
	}
	if inside := Overlaps(cfg, u.Networks); inside != "" {
		notes = append(notes, "warning: "+inside)
	}

	return notes, nil
}

// firewallNotes returns warnings about foreign filters that may drop pods' packets. proc is the
// root of procfs.
func firewallNotes(proc string) (notes []string) {
	filters, err := firewall.Foreign()
	if err != nil {
		notes = append(notes, "warning: "+err.Error())
	}
	for _, f := range filters {
		notes = append(notes, "warning: "+f.String())
	}
	legacy, err := firewall.Legacy(proc)
	switch {
	case err != nil:
		notes = append(notes, "warning: "+err.Error())
	case legacy:
		notes = append(notes, "warning: iptables-legacy has a filter that is not read here: see "+
			"iptables-legacy -S FORWARD and ip6tables-legacy -S FORWARD, "+
			"whose policy must not be DROP for pods")
	}
	return notes
}

// storageNotes returns warnings, one for each kind of storage, about storage whose owner can
// replace files on which Kubeveil relies. Missing paths are skipped.
func storageNotes(confDir string) (notes []string) {
	paths := map[rootfs.Protection][]string{}
	for _, path := range []string{abi.CNIBinDir, confDir, "/etc/kubeveil",
		"/var/lib/containerd"} {
		switch p, err := rootfs.Below(path); {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			notes = append(notes, "warning: "+err.Error())
		case !p.Holds():
			paths[p] = append(paths[p], path)
		}
	}
	for _, p := range []rootfs.Protection{rootfs.Clear, rootfs.Encrypted, rootfs.Unknown} {
		if len(paths[p]) > 0 {
			notes = append(notes, "warning: "+storageNote(paths[p], p))
		}
	}
	return notes
}

// storageNote describes paths on storage whose owner can change them.
func storageNote(paths []string, p rootfs.Protection) string {
	const cure = "Kubeveil's promise needs a root file system that is verified: dm-verity, or " +
		"LUKS2 with --integrity"
	list := strings.Join(paths, ", ")
	if p == rootfs.Unknown {
		return fmt.Sprintf("the protection of %s cannot be read here (in a container, run the "+
			"check on the node itself): %s", list, cure)
	}
	return fmt.Sprintf("the owner of the disk can change %s, which is on %s: %s", list, p, cure)
}

// WideMTU returns a sentence if configured, in bytes, is more than the MTU of the link between
// nodes. Otherwise, or without such a link, it returns "".
func WideMTU(configured int, u underlay.Link) string {
	if u.MTU == 0 || configured <= u.MTU {
		return ""
	}
	return fmt.Sprintf("mtu %d of the configuration is more than the MTU %d of %s, so large "+
		"packets of pods are lost: set it to 0, or to the MTU of the link", configured, u.MTU,
		u.Name)
}

// wireGuardNote returns a sentence about WireGuard in the kernel. It does not load the module.
func wireGuardNote() string {
	if _, err := os.Stat("/sys/module/wireguard"); err == nil {
		return "the kernel has WireGuard"
	}
	return "WireGuard is not loaded in the kernel: veild tries to load it; if the kernel has " +
		"none, veil-wg must run"
}

func checkCapability() error {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&header, &data[0]); err != nil {
		return fmt.Errorf("read own capabilities: %w", err)
	}
	if data[0].Effective&(1<<capNetAdmin) == 0 {
		return errors.New("CAP_NET_ADMIN is missing: run veild as root, or with the capabilities " +
			"that the manifests give it")
	}
	return nil
}
