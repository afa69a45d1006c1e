package cluster

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/pflag"

	"github.com/kubeveil/kubeveil/e2e/cmd/kvlab/internal/program"
	"github.com/kubeveil/kubeveil/e2e/vm"
	"github.com/kubeveil/kubeveil/pkg/config"
)

const upUsage = `Start a cluster of virtual machines and return when its nodes are ready.

The cluster belongs to a process in the background. When that process ends, every machine ends.

Usage: kvlab up [flags]

Examples:
  kvlab up                          two nodes with Kubeveil
  kvlab up --nodes 3 --userspace 3  three nodes; the third has its tunnel in userspace
  kvlab up --no-veil                nodes that wait for a network
  kvlab up --service-proxy ebpf     no kube-proxy: Kubeveil translates services
  kvlab up --proxy-mode ipvs        kube-proxy in another mode
  kvlab up --bare --nodes 1         one machine without Kubernetes, for ssh
  kvlab up --dir /tmp/other         a second cluster, if there is memory for both

Flags:
`

const downUsage = `End the cluster of kvlab up and report the frames that its leak oracle saw.

The exit status is 1 if the oracle saw frames other than tunnels and the control plane's traffic, or
could not read all frames. Clear traffic of pods counts, and so does the clear traffic between hosts
that veilctl connectivity and veilctl bench send.

Usage: kvlab down [flags]

Examples:
  kvlab down
  kvlab down --dir /tmp/other   the cluster of kvlab up --dir /tmp/other

Flags:
`

const sshUsage = `Open a shell on a node of the cluster of kvlab up, or run one command there.

Usage: kvlab ssh [flags] [NODE [COMMAND]]

NODE is node-1 by default. Flags after NODE belong to the command.

Examples:
  kvlab ssh
  kvlab ssh node-2 ip -brief link

Flags:
`

// numbers is the value of a flag: a list of numbers, separated by commas.
type numbers struct{ list *[]int }

// String implements pflag.Value.
func (n numbers) String() string {
	var words []string
	for _, number := range *n.list {
		words = append(words, strconv.Itoa(number))
	}
	return strings.Join(words, ",")
}

// Set implements pflag.Value. A second list adds to the first.
func (n numbers) Set(text string) error {
	for word := range strings.SplitSeq(text, ",") {
		number, err := strconv.Atoi(word)
		if err != nil {
			return fmt.Errorf("%q is not a number", word)
		}
		*n.list = append(*n.list, number)
	}
	return nil
}

// Type implements pflag.Value.
func (n numbers) Type() string { return "numbers" }

// upFlags adds the flags of up, which set o.
func upFlags(flags *pflag.FlagSet, o *vm.ClusterConfig) {
	flags.IntVar(&o.Nodes, "nodes", 2,
		fmt.Sprintf("`number` of machines, 1 to %d; each takes 2 GiB of memory",
			program.MaxMachines))
	flags.Var(numbers{&o.Userspace}, "userspace", "comma-separated `numbers` of machines without "+
		"the kernel's WireGuard")
	flags.BoolVar(&o.Bare, "bare", false, "without Kubernetes")
	flags.BoolVar(&o.NoVeil, "no-veil", false, "without Kubeveil")
	flags.StringVar(&o.ServiceProxy, "service-proxy", config.ServiceProxyNone,
		program.ServiceProxyUsage)
	flags.StringVar(&o.ProxyMode, "proxy-mode", "", program.ProxyModeUsage)
}

// checkUp returns an error if the flags of up are wrong. It runs before anything is made.
func checkUp(o vm.ClusterConfig) error {
	if err := program.CheckMachines(o.Nodes); err != nil {
		return fmt.Errorf("--nodes %d: %w", o.Nodes, err)
	}
	if err := vm.CheckServiceProxy(o.ServiceProxy); err != nil {
		return fmt.Errorf("--service-proxy %s: %w", o.ServiceProxy, err)
	}
	if o.ServiceProxy == config.ServiceProxyEBPF && (o.Bare || o.NoVeil) {
		return fmt.Errorf("--service-proxy %s: Kubeveil translates, so leave out --bare and "+
			"--no-veil", o.ServiceProxy)
	}
	if err := vm.CheckProxyMode(o.ProxyMode, o.ServiceProxy); err != nil {
		return fmt.Errorf("--proxy-mode %s: %w", o.ProxyMode, err)
	}

	for _, n := range o.Userspace {
		if n < 1 || n > o.Nodes {
			return fmt.Errorf("--userspace %d: the machines have the numbers 1 to %d", n, o.Nodes)
		}
	}
	return nil
}
