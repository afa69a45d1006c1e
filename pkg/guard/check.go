package guard

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/rlimit"
	"github.com/google/nftables"
	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/pkg/abi"
)

// Check returns an error if the kernel or the privileges of this process do not suffice for the
// guard. It changes nothing: it loads the maps and programs without pinning or attaching them, and
// lists the nftables tables. If dir has pins of an earlier Open, it skips the BPF check. The error
// joins all problems. Each problem names a remedy and matches ErrNotPermitted or ErrNotSupported
// where that applies.
func Check(dir string) error {
	var bpfErr error
	if _, err := os.Stat(filepath.Join(dir, abi.PinGuardIngress)); err != nil {
		bpfErr = checkBPF()
	}
	return errors.Join(bpfErr, checkNftables())
}

func checkBPF() error {
	if err := rlimit.RemoveMemlock(); err != nil {
		return explain(fmt.Errorf("raise limit of locked memory: %w", err))
	}
	if _, err := probeHooks(); err != nil {
		return err
	}
	all, err := specs()
	if err != nil {
		return err
	}
	for _, spec := range all {
		for _, m := range spec.Maps {
			m.Pinning = ebpf.PinNone
		}
		c, err := ebpf.NewCollection(spec)
		if err != nil {
			return explain(fmt.Errorf("load the guard's programs: %w", err))
		}
		c.Close()
	}
	return nil
}

func checkNftables() error {
	c, err := nftables.New()
	if err == nil {
		_, err = c.ListTables()
	}
	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES):
		return fmt.Errorf("nftables: %w: %w: CAP_NET_ADMIN is needed", ErrNotPermitted, err)
	}
	return fmt.Errorf("nftables: %w: %w: load the module nf_tables, or use a kernel with "+
		"CONFIG_NF_TABLES and CONFIG_NF_TABLES_INET", ErrNotSupported, err)
}
