package vm

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/kubeveil/kubeveil/e2e/lab"
)

// Accel selects how qemu runs a machine's processor.
type Accel string

// KVM uses the hardware's virtualisation. TCG emulates the processor.
const (
	KVM Accel = "kvm"
	TCG Accel = "tcg"
)

// accelerator returns qemu's arguments. With TCG the processor has no AVX. TCG emulates AVX slowly,
// and without it the guest's network and WireGuard are twice as fast.
func accelerator(a Accel) []string {
	if a == KVM {
		return []string{"-machine", "q35,accel=kvm", "-cpu", "host"}
	}
	return []string{"-machine", "q35", "-accel", "tcg,thread=multi", "-cpu",
		"Nehalem,+aes,+pclmulqdq"}
}

// probePatience is the time that a kernel has to print its first lines. A KVM that works needs one
// second.
const probePatience = 15 * time.Second

// probeAccel returns KVM if the kernel, booted in KVM without a disk, gets as far as starting its
// init process. Otherwise it returns TCG. That /dev/kvm can be opened proves nothing: some hosts
// only run patched guests.
func (c *Cluster) probeAccel(ctx context.Context) (Accel, error) {
	if c.opts.Accel != "" {
		return c.opts.Accel, nil
	}
	if c.place.second {
		return c.place.first.Accel, nil
	}
	f, err := os.OpenFile("/dev/kvm", os.O_RDWR, 0)
	if err != nil {
		return TCG, nil //nolint:nilerr // A machine without KVM is not an error.
	}

	f.Close()
	console := filepath.Join(c.Dir, "probe-kvm.log")
	args := append(accelerator(KVM), "-nodefaults", "-display", "none", "-m", "512", "-no-reboot",
		"-kernel", c.image("vmlinuz"), "-initrd", c.image("initrd"), "-append",
		"console=ttyS0 panic=-1 root=/dev/none rootdelay=1",
		"-serial", "file:"+console)
	p, err := c.Lab.Bridge().Start(ctx, "qemu-system-x86_64", args...)
	if err != nil {
		return "", fmt.Errorf("probe KVM: %w", err)
	}

	err = lab.Until(ctx, probePatience, func() error {
		if b, _ := os.ReadFile(console); bytes.Contains(b, []byte("Run /init as init process")) {
			return nil
		}
		if !p.Running() {
			return lab.Stop(fmt.Errorf("qemu has ended"))
		}
		return fmt.Errorf("nothing of a running kernel on the console")
	})

	if kill := p.Kill(ctx); kill != nil {
		return "", kill
	}

	if err != nil {
		c.log.Info("KVM does not run a stock kernel: emulating", "reason", err)
		return TCG, nil
	}

	return KVM, nil
}
