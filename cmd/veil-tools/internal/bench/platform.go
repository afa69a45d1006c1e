package bench

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/bench"
	"github.com/kubeveil/kubeveil/pkg/bench/session"
)

// clues are what the kernel reports about the machine below it.
type clues struct {
	// Flags are the flags in /proc/cpuinfo. Vendor and Product come from the firmware (DMI).
	Flags           []string
	Vendor, Product string
	// Clocks are the available clock sources.
	Clocks string
	// Devices are the names in /dev that only confidential machines have.
	Devices []string
	// Log holds the kernel's messages.
	Log string
}

// confidentialDevices are the devices with which a guest requests an attestation report from its
// firmware.
var confidentialDevices = []string{"sev-guest", "tdx_guest"}

// memoryEncryption matches the kernel's line about the processor's memory encryption. In a guest
// with SEV-SNP or TDX, the line names it (arch/x86/mm/mem_encrypt.c).
var memoryEncryption = regexp.MustCompile(`Memory Encryption Features active: .*`)

// isolation matches the kernel's line about the isolation of a Hyper-V guest with a paravisor. The
// low four bits of group B are the kind of isolation: 2 means SEV-SNP, 3 means TDX
// (arch/x86/kernel/cpu/mshyperv.c).
var isolation = regexp.MustCompile(`Isolation Config: Group A 0x[0-9a-f]+, Group B 0x([0-9a-f]+)`)

// judgeMachine returns the kind of machine, one of pkg/bench's platforms, and the evidence for it.
func judgeMachine(c clues) (name, why string) {
	has := slices.Contains[[]string]
	encrypted := memoryEncryption.FindString(c.Log)
	switch kind := isolationKind(c.Log); {
	case has(c.Devices, "tdx_guest"), has(c.Flags, "tdx_guest"), strings.Contains(encrypted, "TDX"):
		return bench.TDX, "the kernel is a TDX guest"
	case has(c.Devices, "sev-guest"), strings.Contains(encrypted, "SEV-SNP"):
		return bench.SEVSNP, "the kernel is a SEV-SNP guest"
	case kind == 3:
		return bench.TDX, "Hyper-V isolates this guest by TDX"
	case kind == 2:
		return bench.SEVSNP, "Hyper-V isolates this guest by SEV-SNP"
	case !has(c.Flags, "hypervisor"):
		return bench.Metal, "the processor names no hypervisor"
	case c.Vendor == "QEMU" && !strings.Contains(c.Clocks, "kvm-clock"):
		return bench.Emulated, "the machine is QEMU without KVM's clock"
	}
	return bench.VM, "the processor names a hypervisor, and nothing names memory encryption"
}

func isolationKind(log string) uint64 {
	m := isolation.FindStringSubmatch(log)
	if m == nil {
		return 0
	}
	group, err := strconv.ParseUint(m[1], 16, 64)
	if err != nil {
		return 0
	}
	return group & 0xf
}

// platform returns the platform of this node.
func (n *node) platform(_ context.Context, a session.Ask) (any, error) {
	info, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return nil, err
	}
	processor, flags := parseCPUInfo(string(info))
	c := clues{
		Flags: flags, Vendor: line("/sys/class/dmi/id/sys_vendor"),
		Product: line("/sys/class/dmi/id/product_name"),
		Clocks:  line("/sys/devices/system/clocksource/clocksource0/available_clocksource"),
		Log:     kernelLog(),
	}
	for _, name := range confidentialDevices {
		// This is a privileged pod, so it has the host's devices in /dev.
		if _, err := os.Stat(filepath.Join("/dev", name)); err == nil {
			c.Devices = append(c.Devices, name)
		}
	}
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return nil, fmt.Errorf("uname: %w", err)
	}
	p := session.Platform{Kernel: unix.ByteSliceToString(u.Release[:]), CPUs: runtime.NumCPU(),
		Processor: processor, Machine: strings.TrimSpace(c.Vendor + " " + c.Product)}
	p.Name, p.Why = judgeMachine(c)
	return p, describeLinks(&p, a)
}

// describeLinks sets the underlay and tunnels of p. The underlay is the link with a.NodeAddr.
func describeLinks(p *session.Platform, a session.Ask) error {
	links, err := netlink.LinkList()
	if err != nil {
		return fmt.Errorf("list links: %w", err)
	}

	p.KernelTunnels = true
	for _, l := range links {
		attrs := l.Attrs()
		if strings.HasPrefix(attrs.Name, abi.TunnelDevicePrefix) &&
			attrs.Group == abi.TunnelGroup {
			p.Tunnels = append(p.Tunnels, attrs.Name)
			p.KernelTunnels = p.KernelTunnels && l.Type() == "wireguard"
		}
		addrs, err := netlink.AddrList(l, netlink.FAMILY_ALL)
		if err != nil {
			return fmt.Errorf("addresses of %s: %w", attrs.Name, err)
		}
		for _, addr := range addrs {
			if addr.IP.Equal(a.NodeAddr.AsSlice()) {
				p.Underlay, p.UnderlayMTU = attrs.Name, attrs.MTU
			}
		}
	}

	if p.Underlay == "" {
		return fmt.Errorf("no link has the node's address %s", a.NodeAddr)
	}
	return nil
}

// parseCPUInfo returns the name and the flags of the first processor.
func parseCPUInfo(info string) (name string, flags []string) {
	for l := range strings.Lines(info) {
		key, value, _ := strings.Cut(l, ":")
		switch strings.TrimSpace(key) {
		case "model name":
			name = strings.TrimSpace(value)
		case "flags", "Features":
			return name, strings.Fields(value)
		}
	}
	return name, nil
}

// line returns the content of a small file, or "" if it cannot be read.
func line(path string) string {
	b, _ := os.ReadFile(path)
	return strings.TrimSpace(string(b))
}

// kernelLog returns the kernel's messages, or "" if this process may not read them.
func kernelLog() string {
	size, err := unix.Klogctl(unix.SYSLOG_ACTION_SIZE_BUFFER, nil)
	if err != nil || size <= 0 {
		return ""
	}
	b := make([]byte, size)
	n, err := unix.Klogctl(unix.SYSLOG_ACTION_READ_ALL, b)
	if err != nil {
		return ""
	}
	return string(b[:n])
}
