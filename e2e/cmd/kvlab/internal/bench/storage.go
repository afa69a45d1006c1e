package bench

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/kubeveil/kubeveil/csi/crypt/dmcrypt"
	"github.com/kubeveil/kubeveil/e2e/bench/storage"
	"github.com/kubeveil/kubeveil/e2e/cmd/kvlab/internal/program"
	"github.com/kubeveil/kubeveil/pkg/bench/report"
	"github.com/kubeveil/kubeveil/pkg/bench/suite"
)

const storageUsage = `Measure Kubeveil's volumes on a virtual machine: IOPS, bandwidth, latency, CPU
and the time to stage. The same disk has a plain device and stock cryptsetup for comparison. Disks
have the limits of common cloud disks.

Usage: kvlab bench storage [flags]

Examples:
  kvlab bench storage                                 all parts, about 25 minutes on two cores
  kvlab bench storage --rounds 1 --seconds 1          a quick look at all parts, about 8 minutes;
                                                      too short for the gates
  kvlab bench storage --disks free --tuning latency   the disk without limits, volumes tuned for
                                                      latency

Flags:
`

// storageArguments are the values of the command line.
type storageArguments struct {
	storage.RunConfig
	seconds int
	size    int64
}

func storageCommand() *cobra.Command {
	a := storageArguments{RunConfig: storage.RunConfig{Choice: suite.Choice{Rounds: 5,
		Limit: 90 * time.Minute, Parts: storage.Parts()}}}
	b := program.NewBench("storage", storageUsage, &a.Choice)
	b.Flags.IntVar(&a.seconds, "seconds", 3, "duration of each run of fio")
	b.Flags.Int64Var(&a.size, "size", 1024, "`MiB` of the disk for each side; the file is sparse")
	b.Flags.StringVar((*string)(&a.Tuning), "tuning", string(dmcrypt.Throughput),
		"tuning of volumes and cryptsetup, a `class`: throughput or latency")
	b.Flags.StringSliceVar(&a.Disks, "disks", storage.Names(), "`disks` to measure")

	return b.Command("Measure volumes against a plain device and stock cryptsetup",
		func() (program.Run, error) {
			err := a.complete()
			return b.Measure(func(ctx context.Context, folder string) (*report.Report, error) {
				return measureStorage(ctx, folder, a.RunConfig)
			}), err
		})
}

// complete checks the command line and derives what follows from it.
func (a *storageArguments) complete() error {
	if a.seconds < 1 || a.size < 64 {
		return fmt.Errorf("--seconds %d, --size %d: write at least 1 and 64", a.seconds, a.size)
	}
	if a.Tuning != dmcrypt.Throughput && a.Tuning != dmcrypt.Latency {
		return fmt.Errorf("--tuning %s: write throughput or latency", a.Tuning)
	}
	for _, name := range a.Disks {
		if !slices.Contains(storage.Names(), name) {
			return fmt.Errorf("--disks %s: %q is not one of %s", strings.Join(a.Disks, ","), name,
				strings.Join(storage.Names(), ", "))
		}
	}
	a.Sample, a.Room = time.Duration(a.seconds)*time.Second, a.size<<20
	return a.Check()
}

func measureStorage(ctx context.Context, folder string,
	o storage.RunConfig) (*report.Report, error) {
	log, closeLog, err := program.Log(folder, "bench-storage.log")
	if err != nil {
		return nil, err
	}
	defer closeLog()
	o.Dir, o.Log = filepath.Join(folder, "machine"), log
	o.Progress("the machine takes two minutes to begin with, then it is about %v",
		o.Estimate().Round(time.Minute))
	return storage.Run(ctx, o)
}
