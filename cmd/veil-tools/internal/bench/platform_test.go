package bench

import (
	"os"
	"slices"
	"testing"

	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/bench"
)

func TestMain(m *testing.M) { os.Exit(nettest.Run(m)) }

func TestJudgeMachine(t *testing.T) {
	guest := []string{"fpu", "hypervisor"}

	for name, tt := range map[string]struct {
		clues clues
		want  string
	}{
		"a real machine": {clues{Flags: []string{"fpu"},
			Vendor: "Supermicro"}, bench.Metal},
		"QEMU with KVM": {clues{Flags: guest, Vendor: "QEMU",
			Clocks: "kvm-clock tsc"}, bench.VM},
		"QEMU without KVM": {clues{Flags: guest, Vendor: "QEMU",
			Clocks: "tsc hpet acpi_pm"}, bench.Emulated},
		"a cloud's ordinary machine": {clues{Flags: guest, Vendor: "Google",
			Clocks: "kvm-clock tsc"}, bench.VM},
		"SEV-SNP by its device": {clues{Flags: guest, Vendor: "Google",
			Devices: []string{"sev-guest"}}, bench.SEVSNP},
		"SEV-SNP by the kernel's log": {clues{Flags: guest,
			Log: "[    0.4] Memory Encryption Features active: AMD SEV SEV-ES SEV-SNP\n"},
			bench.SEVSNP},
		"SEV alone is not confidential enough": {clues{Flags: guest, Vendor: "Google",
			Clocks: "kvm-clock", Log: "Memory Encryption Features active: AMD SEV\n"}, bench.VM},
		"TDX by its device": {clues{Flags: guest,
			Devices: []string{"tdx_guest"}}, bench.TDX},
		"TDX by the processor's flag": {clues{Flags: append(guest, "tdx_guest")},
			bench.TDX},
		"Azure with SEV-SNP, behind a paravisor": {clues{Flags: guest,
			Vendor: "Microsoft Corporation",
			Log:    "Hyper-V: Isolation Config: Group A 0x1, Group B 0xba2\n"}, bench.SEVSNP},
		"Azure with TDX, behind a paravisor": {clues{Flags: guest,
			Vendor: "Microsoft Corporation",
			Log:    "Hyper-V: Isolation Config: Group A 0x1, Group B 0xbe3\n"}, bench.TDX},
		"Azure without": {clues{Flags: guest,
			Vendor: "Microsoft Corporation", Log: "Hyper-V: privilege flags low 0x2e7f\n"},
			bench.VM},
	} {
		t.Run(name, func(t *testing.T) {
			if got, why := judgeMachine(tt.clues); got != tt.want || why == "" {
				t.Errorf("%s because %q, want %s", got, why, tt.want)
			}
		})
	}
}

func TestParseCPUInfo(t *testing.T) {
	name, flags := parseCPUInfo("processor\t: 0\nmodel name\t: AMD EPYC 7763\nflags\t\t: fpu " +
		"hypervisor\n\nprocessor\t: 1\nmodel name\t: other\n")
	if name != "AMD EPYC 7763" || !slices.Equal(flags, []string{"fpu", "hypervisor"}) {
		t.Errorf("%q, %q", name, flags)
	}
	if name, flags := parseCPUInfo("nothing of it"); name != "" || flags != nil {
		t.Errorf("%q, %q", name, flags)
	}
}

func FuzzParseCPUInfo(f *testing.F) {
	f.Add("model name: x\nflags: a b\n")
	f.Fuzz(func(_ *testing.T, info string) { parseCPUInfo(info) })
}
