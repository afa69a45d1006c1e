package conformance

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kubeveil/kubeveil/e2e/cmd/kvlab/internal/program"
	"github.com/kubeveil/kubeveil/e2e/conformance"
	"github.com/kubeveil/kubeveil/internal/commandline"
	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/bench"
)

func TestMain(m *testing.M) { os.Exit(nettest.Run(m)) }

func TestArguments(t *testing.T) {
	for name, tt := range map[string]struct{ args, want string }{
		"the usual": {"", ""},
		"some on a cluster": {"--kubeconfig c --registry r --platform sev-snp --focus DNS",
			""},
		"without kube-proxy": {"--service-proxy ebpf --focus Services", ""},
		"with policies": {"--policy kubernetes --service-proxy ebpf --focus Netpol",
			""},
		"policies of the whole cluster": {"--cluster-policies --focus TCP", ""},
		"linked clusters":               {"--sites --focus Required", ""},
		"linked clusters of the lab":    {"--sites --lab --host-routing ebpf", ""},
		"networking on the lab":         {"--lab", "--lab is for --sites alone"},
		"the lab and a cluster": {"--sites --lab --kubeconfig c --contexts a,b",
			"--lab is for --sites alone"},
		"linked clusters of ours": {"--sites --kubeconfig c --contexts a,b", ""},
		"linked clusters without names": {"--sites --kubeconfig c",
			"--sites: name the contexts of both clusters"},
		"a name that is empty": {"--sites --kubeconfig c --contexts a,",
			"--sites: name the contexts of both clusters"},
		"contexts of one cluster": {"--kubeconfig c --contexts a,b",
			"--contexts is for --sites with --kubeconfig"},
		"a node for both": {"--sites --nodes 3", "--nodes 3: write an even number"},
		"three suites": {"--cluster-policies --sites --volumes",
			"--cluster-policies and --sites and --volumes are 3 suites"},
		"two suites": {"--cluster-policies --volumes",
			"--cluster-policies and --volumes are 2 suites"},
		"a registry that the tests do not ask": {"--kubeconfig c --registry r --cluster-policies",
			"--registry: the tests of --cluster-policies name their image themselves"},
		"a mistyped platform": {"--kubeconfig c --platform sevsnp",
			"--platform: nodes cannot be \"sevsnp\": write one of emulated, vm, sev-snp"},
		"more than memory":        {"--nodes 9", "--nodes 9: write 1 to 4 machines"},
		"nothing at a time":       {"--parallel 0", "--parallel 0: write at least 1"},
		"a registry for machines": {"--registry r", "--registry is for a cluster"},
		"no regular expression":   {"--focus (", "--focus"},
		"past netfilter":          {"--service-proxy ebpf --host-routing ebpf", ""},
		"past netfilter beside kube-proxy": {"--host-routing ebpf",
			"--host-routing ebpf: it needs the service proxy ebpf, too"},
		"unknown host routing": {"--host-routing bpf",
			"--host-routing bpf: write kernel, ebpf or auto"},
		"services by nobody": {"--service-proxy bpf",
			"--service-proxy bpf: write none or ebpf"},
		"kube-proxy in another mode": {"--proxy-mode ipvs --policy kubernetes", ""},
		"kube-proxy in no mode of it": {"--proxy-mode bpf",
			"--proxy-mode bpf: write nftables, iptables or ipvs"},
		"a mode of no kube-proxy": {"--service-proxy ebpf --proxy-mode nftables",
			"--proxy-mode nftables: with services by ebpf there is no kube-proxy: leave it out"},
		"policies of another": {"--policy calico", "--policy calico: write none or kubernetes"},
	} {
		t.Run(name, func(t *testing.T) {
			var a arguments
			err := commandline.ParseAll(a.flags(), "", strings.Fields(tt.args), io.Discard)
			if err == nil {
				err = a.check()
			}
			if (err == nil) != (tt.want == "") ||
				err != nil && !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %v, want %q", err, tt.want)
			}
		})
	}
}

// A run in which nothing passed misses a gate, even if nothing failed.
func TestNothingPassed(t *testing.T) {
	dir := t.TempDir()
	if err := write(dir, ".", bench.VM, &conformance.Report{Started: time.Now()}); !errors.Is(err,
		program.ErrFailed) {
		t.Errorf("error %v", err)
	}
	result, err := bench.Read(filepath.Join(dir, "result.json"))
	errtest.Must(t, err)
	if missed := result.Missed(); len(missed) != 1 || missed[0].Name != "upstream specs that pass" {
		t.Errorf("missed %+v", missed)
	}
	if _, err := os.Stat(filepath.Join(dir, "junit.xml")); err != nil {
		t.Error(err)
	}
}
