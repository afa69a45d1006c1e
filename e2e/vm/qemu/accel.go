package qemu

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"time"

	"github.com/kubeveil/kubeveil/e2e/lab/labhost"
)

// Accel selects how qemu runs a machine's processor.
type Accel string

// KVM uses the hardware's virtualisation. TCG emulates the processor.
const (
	KVM Accel = "kvm"
	TCG Accel = "tcg"
)

// arguments returns qemu's arguments. With TCG the processor has no AVX. TCG emulates AVX slowly,
// and without it the guest's network and WireGuard are twice as fast.
func (a Accel) arguments() []string {
	if a == KVM {
		return []string{"-machine", "q35,accel=kvm", "-cpu", "host"}
	}
	return []string{"-machine", "q35", "-accel", "tcg,thread=multi", "-cpu",
		"Nehalem,+aes,+pclmulqdq"}
}

// probePatience is the time that a kernel has to print its first lines. A KVM that works needs one
// second.
const probePatience = 15 * time.Second

// Probe returns KVM if the kernel, booted in KVM without a disk, gets as far as starting its init
// process. Otherwise it returns TCG, and the reason in why. That /dev/kvm can be opened proves
// nothing: some hosts only run patched guests. qemu runs on host, and writes the console to a file.
func Probe(ctx context.Context, host *labhost.Host, kernel, initrd, console string) (a Accel,
	why, err error) {
	f, err := os.OpenFile("/dev/kvm", os.O_RDWR, 0)
	if err != nil {
		return TCG, err, nil
	}

	f.Close()
	args := append(KVM.arguments(), "-nodefaults", "-display", "none", "-m", "512", "-no-reboot",
		"-kernel", kernel, "-initrd", initrd, "-append",
		"console=ttyS0 panic=-1 root=/dev/none rootdelay=1",
		"-serial", "file:"+console)
	p, err := host.Start(ctx, "qemu-system-x86_64", args...)
	if err != nil {
		return "", nil, fmt.Errorf("probe KVM: %w", err)
	}

	why = labhost.Until(ctx, probePatience, func() error {
		if b, _ := os.ReadFile(console); bytes.Contains(b, []byte("Run /init as init process")) {
			return nil
		}
		if !p.Running() {
			return labhost.Stop(fmt.Errorf("qemu has ended"))
		}
		return fmt.Errorf("nothing of a running kernel on the console")
	})

	if kill := p.Kill(ctx); kill != nil {
		return "", nil, kill
	}

	if why != nil {
		return TCG, why, nil
	}

	return KVM, nil, nil
}
