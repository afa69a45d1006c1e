package cluster

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/kubeveil/kubeveil/e2e/cmd/kvlab/internal/program"
	"github.com/kubeveil/kubeveil/e2e/vm"
	"github.com/kubeveil/kubeveil/pkg/config"
)

const usage = `kvlab keeps a cluster of virtual machines for developers. It belongs to a process in
the background, whose end, however that comes, ends every machine.

Usage: kvlab VERB [-dir DIR] …

Verbs:
  up [flags]             start it and return when its nodes are ready; kvlab up -h has the flags
  ssh [NODE [COMMAND]]   a shell on a node, or one command; node-1 unless another is named
  kubectl ARGS           kubectl as the cluster's administrator
  down                   end it and say what its leak oracle saw; status 1 when that was more than
                         tunnels and what a cluster of itself sends (pods in clear, but also the
                         plain traffic between hosts of veilctl connectivity or bench), or not all

Examples:
  kvlab up -nodes 3 -userspace 3
  kvlab ssh node-2 ip -brief link
  kvlab kubectl get pods -A -o wide
  kvlab up -dir /tmp/other -no-veil     beside the one of out/vm/cluster, if there is memory for
                                        both
  kvlab down

Flags:
`

const upUsage = `kvlab up starts a cluster of virtual machines and returns when its nodes are ready.

Usage: kvlab up [-dir DIR] [flags]

Examples:
  kvlab up                          two nodes with Kubeveil
  kvlab up -nodes 3 -userspace 3    three, of which the last tunnels in userspace
  kvlab up -no-veil                 nodes that wait for a network
  kvlab up -service-proxy ebpf      no kube-proxy: Kubeveil translates services
  kvlab up -proxy-mode ipvs         kube-proxy in another mode
  kvlab up -bare -nodes 1           a machine that answers ssh

Flags:
`

// errUsage matches errors of the command line.
var errUsage = errors.New("see kvlab -h")

// helped makes a wish for help, which was fulfilled, no error.
func helped(err error) error {
	if errors.Is(err, flag.ErrHelp) {
		return nil
	}
	return err
}

// parse reads flags. If help is requested it is written to out, and the error is flag.ErrHelp.
func parse(flags *flag.FlagSet, args []string, usage string, out io.Writer) error {
	flags.SetOutput(io.Discard) // the error is printed once, by main
	err := flags.Parse(args)
	if errors.Is(err, flag.ErrHelp) {
		fmt.Fprint(out, usage)
		flags.SetOutput(out)
		flags.PrintDefaults()
		return err
	}
	if err != nil {
		return fmt.Errorf("%w: %w", err, errUsage)
	}
	return nil
}

// readUp reads the command line of up.
func readUp(args []string, out io.Writer) (vm.Options, error) {
	var o vm.Options
	flags := flag.NewFlagSet("cluster up", flag.ContinueOnError)
	flags.IntVar(&o.Nodes, "nodes", 2,
		fmt.Sprintf("`number` of machines, 1 to %d; each takes 2 GiB of memory",
			program.MaxMachines))
	flags.Func("userspace", "comma-separated `numbers` of machines that cannot load the kernel's "+
		"WireGuard", func(list string) error {
		for word := range strings.SplitSeq(list, ",") {
			n, err := strconv.Atoi(word)
			if err != nil {
				return fmt.Errorf("%q is not a number", word)
			}
			o.Userspace = append(o.Userspace, n)
		}
		return nil
	})

	flags.BoolVar(&o.Bare, "bare", false, "without Kubernetes")
	flags.BoolVar(&o.NoVeil, "no-veil", false, "without Kubeveil")
	flags.StringVar(&o.ServiceProxy, "service-proxy", config.ServiceProxyNone,
		program.ServiceProxyUsage)
	flags.StringVar(&o.ProxyMode, "proxy-mode", "", program.ProxyModeUsage)
	if err := parse(flags, args, upUsage, out); err != nil {
		return o, err
	}
	if flags.NArg() > 0 {
		return o, fmt.Errorf("unexpected argument %q of up: %w", flags.Arg(0), errUsage)
	}
	if err := program.CheckMachines(o.Nodes); err != nil {
		return o, fmt.Errorf("-nodes %d: %w: %w", o.Nodes, err, errUsage)
	}

	if err := program.CheckServiceProxy(o.ServiceProxy); err != nil {
		return o, fmt.Errorf("-service-proxy %s: %w: %w", o.ServiceProxy, err, errUsage)
	}
	if o.ServiceProxy == config.ServiceProxyEBPF && (o.Bare || o.NoVeil) {
		return o, fmt.Errorf("-service-proxy %s: it is Kubeveil that translates, so leave out "+
			"-bare and -no-veil: %w", o.ServiceProxy, errUsage)
	}
	if err := program.CheckProxyMode(o.ProxyMode, o.ServiceProxy); err != nil {
		return o, fmt.Errorf("-proxy-mode %s: %w: %w", o.ProxyMode, err, errUsage)
	}

	for _, n := range o.Userspace {
		if n < 1 || n > o.Nodes {
			return o, fmt.Errorf("-userspace %d: there is no machine of that number, they are 1 "+
				"to %d: %w", n, o.Nodes, errUsage)
		}
	}

	return o, nil
}

// readNothing reads the command line of a verb that takes nothing but -h.
func readNothing(verb string, args []string, out io.Writer) error {
	flags := flag.NewFlagSet("cluster "+verb, flag.ContinueOnError)
	if err := parse(flags, args, usage, out); err != nil {
		return err
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q of %s: %w", flags.Arg(0), verb, errUsage)
	}
	return nil
}
