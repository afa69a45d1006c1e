package agent

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/pkg/config"
	"github.com/kubeveil/kubeveil/pkg/guard"
)

// capNetAdmin is CAP_NET_ADMIN of capabilities(7).
const capNetAdmin = 12

// CheckHost says what this machine lacks for veild, and what it has too much, all
// of it at once, and changes nothing.
func CheckHost(cfg config.Config) error {
	return errors.Join(checkMachine(cfg), checkOtherCNI(cfg.CNI.ConfDir))
}

// checkMachine is about the machine alone: what is needed to close it, too.
func checkMachine(cfg config.Config) error {
	var errs []error
	if err := checkCapability(); err != nil {
		errs = append(errs, err)
	}
	var fs unix.Statfs_t
	if err := unix.Statfs("/sys/fs/bpf", &fs); err != nil || fs.Type != unix.BPF_FS_MAGIC {
		errs = append(errs, errors.New("/sys/fs/bpf is not a BPF file system: mount -t bpf bpf /sys/fs/bpf"))
	}
	errs = append(errs, guard.Check(config.BPFDir))
	if cfg.Tunnel.Mode == config.ModeUserspace {
		if _, err := os.Stat("/dev/net/tun"); err != nil {
			errs = append(errs, fmt.Errorf("no TUN for tunnel.mode userspace: %w: load the module tun, or give the container /dev/net/tun", err))
		}
	}
	return errors.Join(errs...)
}

func checkCapability() error {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&header, &data[0]); err != nil {
		return fmt.Errorf("read own capabilities: %w", err)
	}
	if data[0].Effective&(1<<capNetAdmin) == 0 {
		return errors.New("CAP_NET_ADMIN is missing: run veild as root, or with the capabilities that the manifests give it")
	}
	return nil
}
