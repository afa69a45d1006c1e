// Package benchstorage runs e2e/bench/storage on a virtual machine that it makes and removes. It
// writes result.json, report.html and report.md into --out. Exit status 1: a gate was missed, or
// something could not be measured. Start reading at run.
package benchstorage

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/kubeveil/kubeveil/csi/crypt"
	"github.com/kubeveil/kubeveil/e2e/bench/storage"
	"github.com/kubeveil/kubeveil/e2e/cmd/kvlab/internal/program"
	"github.com/kubeveil/kubeveil/internal/commandline"
	"github.com/kubeveil/kubeveil/pkg/bench/report"
)

const usage = `Measure Kubeveil's volumes on a virtual machine: IOPS, bandwidth, latency, CPU and
the time to stage, beside a plain device and stock cryptsetup on the same disk, with disks limited
to what cloud disks are sold as.

Usage: kvlab bench storage [flags]

Examples:
  kvlab bench storage                                 all of it, about 25 minutes on two cores
  kvlab bench storage --rounds 1 --seconds 1          a look at everything, in about 8 minutes: too
                                                      little for its gates
  kvlab bench storage --disks free --tuning latency   the disk without limits, volumes of the class
                                                      for latency

Flags:
`

// arguments are the values of the command line.
type arguments struct {
	out           string
	limit         time.Duration
	seconds       int
	size          int64
	tuning, disks string
	options       storage.Options
}

// Command returns the verb.
func Command() *cobra.Command {
	var a arguments
	flags := commandline.New("kvlab bench storage")
	flags.StringVar(&a.out, "out", "out/bench-storage",
		"`folder` for result.json, report.html, report.md and the machine's logs; emptied first")
	flags.DurationVar(&a.limit, "limit", 90*time.Minute, "ends a run that hangs")
	flags.IntVar(&a.options.Rounds, "rounds", 5, "how often each side is measured")
	flags.Uint64Var(&a.options.Seed, "seed", 0, "`seed` of the order (default: the clock)")
	flags.IntVar(&a.seconds, "seconds", 3, "how long fio runs each time")
	flags.Int64Var(&a.size, "size", 1024, "`MiB` of a disk that each side has; a sparse file")
	flags.StringVar(&a.tuning, "tuning", string(crypt.Throughput),
		"`class` of our volumes and flags of cryptsetup: throughput or latency")
	flags.StringVar(&a.disks, "disks", strings.Join(storage.Names(), ","), "which disks")
	return program.Command("Measure volumes beside a plain device and stock cryptsetup",
		flags, usage, func() (program.Run, error) {
			err := a.complete()
			return program.Within(a.limit, func(ctx context.Context) error { return run(ctx, a) }), err
		})
}

// complete checks the command line and derives what follows from it.
func (a *arguments) complete() error {
	if a.options.Rounds < 1 || a.seconds < 1 || a.size < 64 {
		return fmt.Errorf("--rounds %d, --seconds %d, --size %d: write at least 1, 1 and 64",
			a.options.Rounds, a.seconds, a.size)
	}
	a.options.Tuning = crypt.Tuning(a.tuning)
	if a.options.Tuning != crypt.Throughput && a.options.Tuning != crypt.Latency {
		return fmt.Errorf("--tuning %s: write throughput or latency", a.tuning)
	}
	a.options.Disks = strings.Split(a.disks, ",")
	for _, name := range a.options.Disks {
		if !slices.Contains(storage.Names(), name) {
			return fmt.Errorf("--disks %s: %q is none of %s", a.disks, name,
				strings.Join(storage.Names(), ", "))
		}
	}
	a.options.Sample, a.options.Room = time.Duration(a.seconds)*time.Second, a.size<<20
	return nil
}

func run(ctx context.Context, a arguments) error {
	return program.Measure(a.out, func(root, folder string) (*report.Report, error) {
		log, closeLog, err := program.Log(folder, "bench-storage.log")
		if err != nil {
			return nil, err
		}
		defer closeLog()
		o := a.options
		o.Root, o.Dir, o.Log = root, filepath.Join(folder, "machine"), log
		o.Progress = program.Progress(os.Stdout)
		o.Progress("results go to %s; the machine takes two minutes to begin with, then it is "+
			"about %v", folder, o.Estimate().Round(time.Minute))
		return storage.Run(ctx, o)
	})
}
