package kernel

import (
	"cmp"
	"context"
	"errors"
	"os"
	"os/exec"
	"path"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/kubeveil/kubeveil/e2e/vm"
	"github.com/kubeveil/kubeveil/e2e/vm/vmtest"
	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
)

// runEnv is the environment variable that selects the tests to run on the machine, as go test -run
// does. Empty means all.
const runEnv = "KUBEVEIL_KERNEL_RUN"

// packages lists the packages whose tests load programs into the kernel, write its tables or use
// its WireGuard. Only test binaries are on the machine, not the files of the tree. only is a
// pattern of the only tests of a package that run; empty means all tests. not is a pattern of the
// tests that need a file. lab reports whether the tests need the programs of out/bin.
//
// Tests of policies run with -short: a fifth of the random plans, and 20 pods instead of 200
// (TestFirstPackets). Without -short they would take a quarter of an hour on an emulated machine.
// No test is left out. The test of the policy benchmark writes the largest cluster, 10,000 pods and
// 100,000 rules. The benchmark's other tests measure, which is not possible on an emulated machine.
var packages = []struct {
	path, only, not string
	short, lab      bool
}{
	{path: "bpf", only: "TestProgramsKeepTheirBudgets"},
	{path: "pkg/service/bpfmaps",
		not: "TestCountersMatchThePrograms|TestFlagsOfFlowsAreAsInThePrograms"},
	{path: "pkg/service/slots"}, {path: "pkg/service/link"},
	{path: "pkg/guard"}, {path: "pkg/guard/sample"},
	{path: "pkg/hostnet"}, {path: "pkg/drop"}, {path: "pkg/flow"},
	{path: "pkg/pod", short: true}, {path: "pkg/policy/nftables", short: true},
	{path: "pkg/policy/keeper", short: true},
	{path: "e2e/bench/policy", only: "TestLargestClusterIsInOneNamespace"},
	{path: "pkg/engine"},
	{path: "e2e/node/network", lab: true,
		only: "TestDroppedPacketsAreNamed|TestClassOfEachFlowIsTheClassOfItsFrames"},
	{path: "e2e/node/policy", lab: true, only: "TestDeniedPacketIsNamed"},
}

// labFiles are the files and folders of the tree that a lab with an API server needs.
var labFiles = []string{"out/bin/veild", "out/bin/veil-wg", "out/bin/veilctl", "out/bin/veil-tools",
	"out/bin/veil", "out/bin/host-local", "out/bin/loopback", "out/bin/portmap", "out/bin/bandwidth",
	"out/bin/kube-apiserver", "out/tools/etcd", "manifests/crd", "manifests/cni",
	"manifests/components/policy"}

// TestKernel runs the tests of packages on a machine without Kubernetes. A test may skip only if
// the machine's kernel lacks what it needs. The output lists which tests of encapsulation ran.
func TestKernel(t *testing.T) {
	vmtest.Need(t)
	ctx, cancel := context.WithTimeout(t.Context(), 40*time.Minute)
	defer cancel()
	m := vmtest.New(ctx, t, vm.ClusterConfig{Nodes: 1, Bare: true}).Machines[0]
	t.Run("networkd", func(t *testing.T) { keepsForeignRoutes(ctx, t, m) })

	environment := skipsOf(ctx, t, m)
	for _, pkg := range packages {
		run := os.Getenv(runEnv)
		if pkg.only != "" {
			if asked, err := regexp.MatchString(run, pkg.only); err != nil {
				t.Fatal(err)
			} else if !asked {
				continue
			}
			run = "^(" + pkg.only + ")$"
		}

		t.Run(strings.ReplaceAll(pkg.path, "/", "-"), func(t *testing.T) {
			binary := vmtest.Build(ctx, t, "../../"+pkg.path)
			errtest.Must(t, m.PutFile(ctx, "/root/tests", binary))
			parallel, logs := "", ""
			if pkg.lab {
				putLabFiles(ctx, t, m)
				// An emulated machine is too slow for two labs at once.
				parallel = "-test.parallel 1"
				logs = "[ $s = 0 ] || tail -n 20 out/lab/*/*/log/* | cut -c -300"
			}
			// The sysctls of conntrack exist only after its module is loaded.
			out, err := m.Exec(ctx, "cd /root && chmod +x tests && modprobe nf_conntrack && "+
				"uname -r && KUBEVEIL_LAB_NO_BUILD=1 "+environment+
				" ./tests -test.v -test.timeout 20m -test.run '"+run+"' -test.skip '"+pkg.not+
				"' -test.short="+strconv.FormatBool(pkg.short)+" "+parallel+
				" 2>&1; s=$?; echo status $s; dmesg | tail -5; "+logs)
			t.Logf("%s", out)
			if err != nil || !strings.Contains(string(out), "\nPASS\nstatus 0\n") {
				t.Errorf("tests on the machine: %v", err)
			}
			noteEncapsulations(t, pkg.path, string(out))
		})
	}
}

// putLabFiles makes /root look like the tree to a lab, unless it does already.
func putLabFiles(ctx context.Context, t *testing.T, m *vm.Machine) {
	t.Helper()
	const archive = "/root/tree.tar"
	if _, err := m.Exec(ctx, "test -e "+archive); err == nil {
		return
	}
	tar := exec.CommandContext(ctx, "tar", append([]string{"-C", "../..", "-chf", "-", "go.mod"},
		labFiles...)...)
	files, err := tar.StdoutPipe()
	errtest.Must(t, errors.Join(err, tar.Start()))
	errtest.Must(t, errors.Join(m.Put(ctx, archive, 0o600, files), tar.Wait()))
	errtest.Must(t, errtest.Of(m.Exec(ctx, "tar -C /root -xf "+archive)))
}

// skipsOf returns the environment variables with which a skip fails, unless the machine's kernel
// lacks what the test needs.
func skipsOf(ctx context.Context, t *testing.T, m *vm.Machine) string {
	t.Helper()
	out, err := m.Exec(ctx, "uname -r && cat /boot/config-$(uname -r)")
	errtest.Must(t, err)
	release, config, _ := strings.Cut(string(out), "\n")
	var reasons []string
	for _, reason := range mayLack(release, config) {
		reasons = append(reasons, string(reason))
	}
	t.Logf("Linux %s: tests may skip for %q", release, reasons)
	return "CI=true " + nettest.ExpectedSkipsEnv + "=" + strings.Join(reasons, ",")
}

// noteEncapsulations logs the results of a package's tests of encapsulation. A test that did not
// begin is an error, unless runEnv selects tests.
func noteEncapsulations(t *testing.T, pkg, out string) {
	t.Helper()
	for _, e := range encapsulations {
		if e.pkg != pkg {
			continue
		}
		became := fate(out, e.test)
		if became == "" && os.Getenv(runEnv) == "" {
			t.Errorf("%s: %s is not in the output", e.name, e.test)
		}
		t.Logf("encapsulation by %s: %s", e.name, cmp.Or(became, "not asked"))
	}
}

// keepsForeignRoutes restarts systemd-networkd with the drop-in of manifests/systemd, and without
// it as the control. A rule, an unreachable route and a route via a link stand for veild's rules
// and routes. networkd must keep them with the drop-in.
func keepsForeignRoutes(ctx context.Context, t *testing.T, m *vm.Machine) {
	const dropIn = "/etc/systemd/networkd.conf.d/kubeveil.conf"
	restart := func(want string) {
		t.Helper()
		out, err := m.Exec(ctx, restartNetworkd)
		if err != nil || !strings.Contains(string(out), want) {
			t.Fatalf("%s\n%v; want %q", out, err, want)
		}
	}
	restart("rules 0 unreachable 0 by link 1\n")
	errtest.Must(t, errtest.Of(m.Exec(ctx, "mkdir -p "+path.Dir(dropIn))))
	errtest.Must(t, m.PutFile(ctx, dropIn, "../../manifests/systemd/networkd-kubeveil.conf"))
	restart("rules 1 unreachable 1 by link 1\n")
	if out, err := m.Exec(ctx, "rm "+dropIn+
		" && systemctl restart systemd-networkd && ip link delete dummy7"); err != nil {
		t.Fatalf("%s: %v", out, err)
	}
}

// restartNetworkd adds a foreign rule and foreign routes if they are missing, restarts
// systemd-networkd, waits until it has configured its link, and counts the rule and the routes.
const restartNetworkd = `ip link show dummy7 >/dev/null 2>&1 || ip link add dummy7 type dummy
ip link set dummy7 up
ip rule show pref 30309 | grep -q . || ip rule add pref 30309 lookup 30309
ip route replace unreachable 198.18.98.0/24 table 30309
ip route replace 198.18.99.0/24 dev dummy7 table 30309
systemctl restart systemd-networkd || exit 1
for i in $(seq 100); do networkctl --no-pager status eth0 | grep -q '(configured)' && break; sleep 0.2; done
networkctl --no-pager
count() { ip "$@" 2>/dev/null | wc -l; }
echo rules $(count rule show pref 30309) unreachable $(count route show table 30309 type unreachable) by link $(count route show table 30309 dev dummy7)`
