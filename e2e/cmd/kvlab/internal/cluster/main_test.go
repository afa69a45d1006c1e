package cluster

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/kubeveil/kubeveil/e2e/cmd/kvlab/internal/program"
	"github.com/kubeveil/kubeveil/e2e/vm"
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

// run runs a command line on a cluster in a folder that must not be made. It returns both outputs.
func run(t *testing.T, args string) (out, problems string, err error) {
	t.Helper()
	root := &cobra.Command{Use: "kvlab", SilenceErrors: true, SilenceUsage: true}
	root.AddCommand(Commands()...)
	var stdout, stderr bytes.Buffer
	root.SetOut(&stdout)
	root.SetErr(&stderr)
	words := strings.Fields(args)
	err = program.Execute(root, slices.Insert(words, 1, "--dir", untouched(t)))
	return stdout.String(), stderr.String(), err
}

func TestHelpReturnsNoError(t *testing.T) {
	for args, want := range map[string]string{
		"up -h": "kvlab up --no-veil", "up --nodes 9 --help": "--userspace",
		"down -h": "kvlab down", "ssh -h": "kvlab ssh node-2",
	} {
		t.Run(args, func(t *testing.T) {
			out, problems, err := run(t, args)
			if err != nil || problems != "" {
				t.Errorf("%v, %s", err, problems)
			}
			if !strings.Contains(out, "Examples:") || !strings.Contains(out, want) {
				t.Errorf("no %q in\n%s", want, out)
			}
		})
	}
}

func TestCommandLineIsRefused(t *testing.T) {
	for name, tt := range map[string]struct{ args, want string }{
		"too many machines": {"up --nodes 9", "--nodes 9: write 1 to 4 machines"},
		"none":              {"up --nodes 0", "--nodes 0: write 1 to 4 machines"},
		"a machine of no number": {"up --userspace 3",
			"--userspace 3: the machines have the numbers 1 to 2"},
		"no number": {"up --userspace 1,x", `"x" is not a number`},
		"services by nobody": {"up --service-proxy bpf",
			"--service-proxy bpf: write none or ebpf"},
		"services without veil": {"up --no-veil --service-proxy ebpf",
			"leave out --bare and --no-veil"},
		"kube-proxy in no mode of it": {"up --proxy-mode bpf",
			"--proxy-mode bpf: write nftables, iptables or ipvs"},
		"a mode of no kube-proxy": {"up --proxy-mode ipvs --service-proxy ebpf",
			"--proxy-mode ipvs: with services by ebpf there is no kube-proxy"},
		"a flag of no name":     {"up --node 2", "unknown flag: --node"},
		"one dash":              {"up -nodes 2", "-nodes: write --nodes"},
		"more than the verb":    {"up now", `unexpected argument "now"`},
		"an end of one of many": {"down node-1", `unexpected argument "node-1"`},
		"a flag for ssh":        {"ssh -v", "in -v"},
	} {
		t.Run(name, func(t *testing.T) {
			_, problems, err := run(t, tt.args)
			var status program.Status
			if !errors.As(err, &status) || status != 2 || !strings.Contains(problems, tt.want) {
				t.Errorf("%v, %q, want status 2 and %q", err, problems, tt.want)
			}
		})
	}
}

// The process in the background gets the flags of up.
func TestFlagsReachTheBackground(t *testing.T) {
	var given []string
	cmd := upCommand("up", "", func(_ string, _ vm.ClusterConfig, words []string) error {
		given = words
		return nil
	})
	err := program.Execute(cmd, []string{"--dir", untouched(t), "--nodes=3", "--userspace", "2,3",
		"--userspace=1", "--no-veil"})
	want := []string{"--no-veil=true", "--nodes=3", "--userspace=2,3,1"}
	if err != nil || !slices.Equal(given, want) {
		t.Errorf("%q (%v), want %q", given, err, want)
	}
}
