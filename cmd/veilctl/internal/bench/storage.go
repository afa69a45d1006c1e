package bench

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/kubeveil/kubeveil/cmd/veilctl/internal/verb"
	"github.com/kubeveil/kubeveil/pkg/bench"
	"github.com/kubeveil/kubeveil/pkg/bench/report"
	"github.com/kubeveil/kubeveil/pkg/bench/volumes"
	"github.com/kubeveil/kubeveil/pkg/remote"
)

// benchStorageFlags are the flags of bench storage.
type benchStorageFlags struct {
	measuring
	options volumes.RunConfig
	size    int64
}

func benchStorageCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "storage", Short: "Measure claims of two StorageClasses beside one another",
		Long: `It creates a claim of each class and a pod on one node, in a new namespace, and
measures reads and writes of both claims. It writes result.json, report.html and report.md, and
removes everything at the end. It fully loads the disks, so do not run it beside important work. It
has no gates, because it cannot know the disks, or whether both classes use the same disk. With the
default 10 seconds per sample and five rounds, it takes about a quarter of an hour.`,
		Example: `veilctl bench storage --class kubeveil --baseline-class local-path --out bench
veilctl bench storage --class kubeveil --baseline-class standard --node worker-1 --size 8192
veilctl bench storage --class kubeveil --baseline-class standard --rounds 1 --seconds 1`,
	}

	fs := cmd.Flags()
	var f benchStorageFlags
	f.register(cmd, "bench-storage", "how long a sample takes")
	fs.StringVar(&f.options.Class, "class", "", "StorageClass to measure")
	fs.StringVar(&f.options.Baseline, "baseline-class", "",
		"StorageClass to compare it with")
	fs.StringVar(&f.options.Node, "node", "",
		"`name` of the node (default: the scheduler's choice)")
	fs.StringVar(&f.options.Platform, "platform", bench.VM,
		"what the nodes are: vm, emulated, sev-snp, tdx, metal")

	fs.Int64Var(&f.size, "size", 1024,
		"`MiB` to read and write; each claim is a quarter larger")
	fs.IntVar(&f.options.Rounds, "rounds", 5, "number of rounds; each measures both classes once")
	fs.Uint64Var(&f.options.Seed, "seed", 0, "`seed` of the order (default: the clock)")
	return verb.Reporting(cmd, f.measure)
}

// parse checks the flags and returns the options.
func (f *benchStorageFlags) parse() (volumes.RunConfig, error) {
	o := f.options
	switch {
	case o.Class == "" || o.Baseline == "":
		return o, fmt.Errorf("name two classes with --class and --baseline-class, as kubectl get storageclasses "+
			"names them: %w", verb.ErrUsage)
	case o.Class == o.Baseline:
		return o, fmt.Errorf("--class and --baseline-class are both %s: %w", o.Class, verb.ErrUsage)
	case o.Rounds < 1 || !f.secondsFit() || f.size < 64:
		return o, fmt.Errorf("--rounds %d, --seconds %d, --size %d: write at least one "+
			"round, 1 to "+
			"600 seconds, and 64 MiB: %w", o.Rounds, f.seconds, f.size, verb.ErrUsage)
	}
	if err := bench.CheckNodes(o.Platform); err != nil {
		return o, fmt.Errorf("--platform: %w: %w", err, verb.ErrUsage)
	}
	o.Sample, o.Size = time.Duration(f.seconds)*time.Second, f.size<<20
	return o, nil
}

func (f *benchStorageFlags) measure(c verb.Call) error {
	o, err := f.parse()
	if err != nil {
		return err
	}
	return f.run(c, func(k *remote.Cluster,
		progress func(string, ...any)) (*report.Report, error) {
		o.Progress = progress
		return volumes.Run(c.Ctx, k, o)
	})
}
