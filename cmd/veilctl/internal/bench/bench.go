package bench

import (
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/kubeveil/kubeveil/cmd/veilctl/internal/verb"
	"github.com/kubeveil/kubeveil/pkg/bench/network"
	"github.com/kubeveil/kubeveil/pkg/bench/report"
	"github.com/kubeveil/kubeveil/pkg/remote"
)

// benchFlags are the flags of bench.
type benchFlags struct {
	measuring
	nodes, prefix string
	options       network.Options
}

// Command returns the verb that measures the network of a cluster. Its subcommand measures volumes.
func Command() *cobra.Command {
	cmd := &cobra.Command{
		Use: "bench", Short: "Measure TCP, UDP, latency and CPU time between two nodes",
		Long: `It measures traffic from pod to pod and from pod to service between two nodes:
through Kubeveil, through a kernel WireGuard that it configures itself, and in clear. It writes
result.json, report.html and report.md. It creates two privileged pods in a new namespace, and
removes everything at the end. It fully loads the two nodes and the network between them, so do not
run it beside important traffic. The platform that the nodes report selects the gates. The exit
status is 1 if a gate is missed. With the default 10 seconds per sample and five rounds, it takes
about an hour.`,
		Example: `veilctl bench --kubeconfig ~/.kube/config --out bench
veilctl bench --image registry.example/kubeveil-tools:v0.1.0 --nodes worker-1,worker-2
veilctl bench --rounds 1 --seconds 1 --churn -1s     # a first look, in a few minutes`,
	}
	fs := cmd.Flags()
	var f benchFlags
	f.register(cmd, "bench", "length of a TCP sample; UDP and latency scale with it")
	fs.StringVar(&f.nodes, "nodes", "", verb.NodesUsage)
	fs.StringVar(&f.prefix, "prefix", network.DefaultPrefix.String(),
		"`prefix` with addresses for the other two sides;\nno other host may use them")
	fs.IntVar(&f.options.Rounds, "rounds", 5, "number of rounds; each measures every side once")
	fs.Uint64Var(&f.options.Seed, "seed", 0, "`seed` of the order (default: the clock)")
	fs.DurationVar(&f.options.Churn, "churn", time.Minute,
		"time to create and delete pods; negative skips this")
	cmd.AddCommand(benchStorageCommand())
	return verb.Reporting(cmd, f.measure)
}

func (f *benchFlags) measure(c verb.Call) error {
	o, err := f.parse()
	if err != nil {
		return err
	}
	return f.run(c, func(k *remote.Cluster,
		progress func(string, ...any)) (*report.Report, error) {
		o.Progress = progress
		rep, err := network.Run(c.Ctx, k, o)
		if err != nil {
			err = fmt.Errorf("bench: %w", err)
		}
		return rep, err
	})
}

// parse checks the flags and returns the options.
func (f *benchFlags) parse() (network.Options, error) {
	o := f.options
	var err error
	if o.Prefix, err = netip.ParsePrefix(f.prefix); err != nil {
		return o, fmt.Errorf("--prefix: %w: %w", err, verb.ErrUsage)
	}
	if f.nodes != "" {
		if o.Nodes = strings.Split(f.nodes, ","); len(o.Nodes) != 2 {
			return o, fmt.Errorf("--nodes %s: write two names with a comma between them: %w",
				f.nodes, verb.ErrUsage)
		}
	}
	if o.Rounds < 1 || !f.secondsFit() {
		return o, fmt.Errorf("--rounds %d, --seconds %d: write at least one round, and 1 to 600 "+
			"seconds: %w", o.Rounds, f.seconds, verb.ErrUsage)
	}
	o.TCP = time.Duration(f.seconds) * time.Second
	o.Probe = max(time.Second, (o.TCP / 5).Round(time.Second))
	o.RoundTrips = max(time.Second, o.TCP/2)
	return o, nil
}
