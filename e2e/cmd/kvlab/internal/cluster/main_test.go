package cluster

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kubeveil/kubeveil/internal/nettest"
)

func TestMain(m *testing.M) { os.Exit(nettest.Run(m)) }

// untouched is a folder that must not be made, as what is in one that was must not go, for the sake
// of a command line that is only read.
func untouched(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "cluster")
	t.Cleanup(func() {
		if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s was made: %v", dir, err)
		}
	})
	return dir
}

func TestHelpReturnsNoError(t *testing.T) {
	for args, want := range map[string]string{
		"-h": "kvlab kubectl get pods", "up -h": "kvlab up -no-veil",
		"up -nodes 9 --help": "-userspace", "down -h": "kvlab down",
		"ssh -h": "kvlab ssh node-2",
	} {
		t.Run(args, func(t *testing.T) {
			var out bytes.Buffer
			if err := run(append([]string{"-dir", untouched(t)}, strings.Fields(args)...),
				&out); err != nil {
				t.Error(err)
			}
			if !strings.Contains(out.String(), "Examples:") ||
				!strings.Contains(out.String(), want) {
				t.Errorf("no %q in\n%s", want, &out)
			}
		})
	}
}

func TestCommandLineIsRefused(t *testing.T) {
	for name, tt := range map[string]struct{ args, want string }{
		"no verb":           {"", "write up, ssh, kubectl or down"},
		"another verb":      {"start", `unknown verb "start"`},
		"too many machines": {"up -nodes 9", "-nodes 9: write 1 to 4 machines"},
		"none":              {"up -nodes 0", "-nodes 0: write 1 to 4 machines"},
		"a machine of no number": {"up -userspace 3",
			"-userspace 3: there is no machine of that number, they are 1 to 2"},
		"no number": {"up -userspace 1,x", `"x" is not a number`},
		"services by nobody": {"up -service-proxy bpf",
			"-service-proxy bpf: write none (kube-proxy) or ebpf"},
		"services without veil": {"up -no-veil -service-proxy ebpf",
			"leave out -bare and -no-veil"},
		"kube-proxy in no mode of it": {"up -proxy-mode bpf",
			"-proxy-mode bpf: write nftables, iptables or ipvs"},
		"a mode of no kube-proxy": {"up -proxy-mode ipvs -service-proxy ebpf",
			"-proxy-mode ipvs: with services by ebpf there is no kube-proxy"},
		"a flag of no name":     {"up -node 2", "flag provided but not defined: -node"},
		"more than the verb":    {"up now", `unexpected argument "now" of up`},
		"an end of one of many": {"down node-1", `unexpected argument "node-1" of down`},
		"a flag for ssh":        {"ssh -v", "-v"},
	} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			err := run(append([]string{"-dir", untouched(t)}, strings.Fields(tt.args)...), &out)
			if !errors.Is(err, errUsage) || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %v, want %q", err, tt.want)
			}
		})
	}
}
