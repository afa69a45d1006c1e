package nettest

import (
	"encoding/json"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// Reason is the reason why a test cannot run on this machine. A test may skip only for one of the
// reasons below.
type Reason string

// The reasons for which a test may skip.
const (
	// NoRoot means that the test needs to be root.
	NoRoot Reason = "no-root"
	// NoTUN means that /dev/net/tun cannot be opened.
	NoTUN Reason = "no-tun"
	// NoBPF means that the kernel loads no BPF programs, or has no bpffs.
	NoBPF Reason = "no-bpf"
	// NoTCX means that the kernel has no tcx (before 6.6).
	NoTCX Reason = "no-tcx"
	// NoWireGuard means that the kernel has no WireGuard.
	NoWireGuard Reason = "no-kernel-wireguard"
	// NoFlowtable means that the kernel has no flow tables for nftables
	// (CONFIG_NF_FLOW_TABLE_INET).
	NoFlowtable Reason = "no-flowtable"
	// NoIOAM6 and NoRPL mean that the kernel has no routes with this encapsulation
	// (CONFIG_IPV6_IOAM6_LWTUNNEL, CONFIG_IPV6_RPL_LWTUNNEL).
	NoIOAM6 Reason = "no-ioam6"
	NoRPL   Reason = "no-rpl"
	// NoESP means that the kernel has no IPsec (CONFIG_INET_ESP).
	NoESP Reason = "no-esp"
	// NoProgram means that a program that the test runs is not installed.
	NoProgram Reason = "no-program"
	// NoKernelFeature means that this kernel lacks another feature.
	NoKernelFeature Reason = "no-kernel-feature"
	// NoCapability means that the test runs as root, but lacks a capability.
	NoCapability Reason = "no-capability"
	// NoRelease means that the commit of the last release is not in this clone of the repository.
	NoRelease Reason = "no-release"
	// NoModule means that Go modules of a tool are not in the module cache, and no proxy answers.
	NoModule Reason = "no-module"
	// NoAVX512 means that the CPU has no AVX-512.
	NoAVX512 Reason = "no-avx512"
	// Short means that the test is long, and long tests were not requested.
	Short Reason = "short"
)

// SkipLogEnv names the file to which each skip is appended as a line of JSON.
const SkipLogEnv = "KUBEVEIL_SKIP_LOG"

// ExpectedSkipsEnv lists the reasons, separated by commas, that are expected
// where CI=true.
const ExpectedSkipsEnv = "KUBEVEIL_EXPECTED_SKIPS"

// skipRecord is one line of the skip log.
type skipRecord struct {
	Name   string `json:"name"`
	Reason Reason `json:"reason"`
	Detail string `json:"detail,omitempty"`
}

// Skip skips the test for the reason. Where CI=true and the reason is not expected, it fails the
// test instead. detail is a text for the log.
func Skip(t testing.TB, reason Reason, detail string) {
	t.Helper()
	logSkip(t, skipRecord{t.Name(), reason, detail})
	if !maySkip(reason, os.Getenv("CI"), os.Getenv(ExpectedSkipsEnv)) {
		t.Fatalf("unexpected skip in CI: %s: %s (expected ones are listed in %s)", reason, detail,
			ExpectedSkipsEnv)
	}
	t.Skipf("%s: %s", reason, detail)
}

func maySkip(reason Reason, ci, expected string) bool {
	return ci != "true" || slices.Contains(strings.Split(expected, ","), string(reason))
}

func logSkip(t testing.TB, rec skipRecord) {
	path := os.Getenv(SkipLogEnv)
	if path == "" {
		return
	}
	line, err := json.Marshal(rec)
	if err != nil {
		t.Fatalf("encode skip: %v", err)
	}
	// A single write with O_APPEND is not interleaved with writes of other test processes.
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		t.Fatalf("open skip log: %v", err)
	}
	defer f.Close()
	if _, err := f.Write(append(line, '\n')); err != nil {
		t.Fatalf("write skip log: %v", err)
	}
}

// longEnv names the environment variable that, when set, also runs the tests that mostly wait, the
// largest tables, and what only tries a measuring tool.
const longEnv = "KUBEVEIL_LAB_LONG"

// Long reports whether the long tests were requested.
func Long() bool { return os.Getenv(longEnv) != "" }

// NeedLong skips a test unless the long tests were requested. why names its wait, or what covers it
// meanwhile.
func NeedLong(t testing.TB, why string) {
	t.Helper()
	if !Long() {
		Skip(t, Short, why+"; "+longEnv+"=1 runs it")
	}
}

// NeedRoot skips the test when it is not run by root.
func NeedRoot(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		Skip(t, NoRoot, "run as root")
	}
}

// Capable reports whether this process has a capability, one of unix.CAP_* (capabilities(7)).
func Capable(t testing.TB, capability int) bool {
	t.Helper()
	var data [2]unix.CapUserData
	if err := unix.Capget(&unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3},
		&data[0]); err != nil {
		t.Fatal(err)
	}
	return data[capability/32].Effective&(1<<(capability%32)) != 0
}

// NeedCapability skips the test if this process lacks the capability. detail is a text for the log.
func NeedCapability(t testing.TB, capability int, detail string) {
	t.Helper()
	if !Capable(t, capability) {
		Skip(t, NoCapability, detail)
	}
}

// NeedTUN skips the test if /dev/net/tun cannot be opened. It implies NeedRoot.
func NeedTUN(t testing.TB) {
	t.Helper()
	NeedRoot(t)
	f, err := os.OpenFile("/dev/net/tun", os.O_RDWR, 0)
	if err != nil {
		Skip(t, NoTUN, err.Error())
	}
	f.Close()
}

// NeedProgram returns the path of a program. It skips the test if the program is not in PATH.
func NeedProgram(t testing.TB, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		Skip(t, NoProgram, err.Error())
	}
	return path
}

// NeedBPF skips the test if bpf(2) is missing or not permitted. It implies NeedRoot.
func NeedBPF(t testing.TB) {
	t.Helper()
	NeedRoot(t)
	_, _, errno := unix.Syscall(unix.SYS_BPF, uintptr(unix.BPF_MAP_CREATE), 0, 0)
	if errno == unix.ENOSYS || errno == unix.EPERM {
		Skip(t, NoBPF, "bpf(2): "+errno.Error())
	}
}
