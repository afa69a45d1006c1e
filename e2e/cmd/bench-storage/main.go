// Bench-storage runs e2e/bench/storage on a virtual machine that it makes and removes. It writes result.json, report.html and report.md into -out.
// Exit status 1: a gate was missed, or something could not be measured. Start reading at run.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/kubeveil/kubeveil/csi/crypt"
	"github.com/kubeveil/kubeveil/e2e/bench/report"
	"github.com/kubeveil/kubeveil/e2e/bench/storage"
	"github.com/kubeveil/kubeveil/e2e/lab"
)

const usage = `bench-storage measures Kubeveil's volumes on a virtual machine: IOPS, bandwidth, latency, CPU and the time to stage,
beside a plain device and stock cryptsetup on the same disk, with disks limited to what cloud disks are sold as.

Usage: bench-storage [flags]

Examples:
  bench-storage                                   all of it, about 40 minutes on two cores
  bench-storage -rounds 1 -seconds 1              a look at everything, in about 7 minutes
  bench-storage -disks free -tuning latency       the disk without limits, volumes of the class for latency

Flags:
`

// arguments are those of the command line.
type arguments struct {
	out     string
	limit   time.Duration
	options storage.Options
}

func parse(args []string) (arguments, error) {
	var a arguments
	flags := flag.NewFlagSet("bench-storage", flag.ContinueOnError)
	flags.StringVar(&a.out, "out", "out/bench-storage", "`folder` for result.json, report.html, report.md and the machine's logs")
	flags.DurationVar(&a.limit, "limit", 75*time.Minute, "ends a run that hangs")
	flags.IntVar(&a.options.Rounds, "rounds", 5, "how often each side is measured")
	flags.Uint64Var(&a.options.Seed, "seed", 0, "`seed` of the order (default: the clock)")
	seconds := flags.Int("seconds", 3, "how long fio runs each time")
	room := flags.Int64("size", 1024, "`MiB` of a disk that each side has; a sparse file")
	tuning := flags.String("tuning", string(crypt.Throughput), "`class` of our volumes and flags of cryptsetup: throughput or latency")
	disks := flags.String("disks", strings.Join(storage.Names(), ","), "which disks")
	flags.Usage = func() {
		fmt.Fprint(flags.Output(), usage)
		flags.PrintDefaults()
	}
	if err := flags.Parse(args); err != nil {
		return a, err
	}
	if flags.NArg() > 0 {
		return a, fmt.Errorf("unexpected argument %q: see bench-storage -h", flags.Arg(0))
	}
	if a.options.Rounds < 1 || *seconds < 1 || *room < 64 {
		return a, fmt.Errorf("-rounds %d, -seconds %d, -size %d: write at least 1, 1 and 64", a.options.Rounds, *seconds, *room)
	}
	a.options.Tuning = crypt.Class(*tuning)
	if a.options.Tuning != crypt.Throughput && a.options.Tuning != crypt.Latency {
		return a, fmt.Errorf("-tuning %s: write throughput or latency", *tuning)
	}
	a.options.Disks = strings.Split(*disks, ",")
	for _, name := range a.options.Disks {
		if !slices.Contains(storage.Names(), name) {
			return a, fmt.Errorf("-disks %s: %q is none of %s", *disks, name, strings.Join(storage.Names(), ", "))
		}
	}
	a.options.Sample, a.options.Room = time.Duration(*seconds)*time.Second, *room<<20
	return a, nil
}

func main() {
	a, err := parse(os.Args[1:])
	if errors.Is(err, flag.ErrHelp) {
		return
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench-storage:", err)
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ctx, cancel := context.WithTimeoutCause(ctx, a.limit, fmt.Errorf("bench-storage did not end within %v", a.limit))
	defer cancel()
	if err := run(ctx, a); err != nil {
		fmt.Fprintln(os.Stderr, "bench-storage:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, a arguments) error {
	var err error
	// Programs that are run elsewhere are given paths below it.
	if a.out, err = filepath.Abs(a.out); err != nil {
		return err
	}
	// What an earlier run left must not be taken for this one's.
	if err := errors.Join(os.RemoveAll(a.out), os.MkdirAll(a.out, 0o755)); err != nil {
		return err
	}
	logFile, err := os.Create(filepath.Join(a.out, "bench-storage.log"))
	if err != nil {
		return err
	}
	defer logFile.Close()
	began := time.Now()
	o := a.options
	o.Progress = func(format string, args ...any) {
		fmt.Printf("[%5.0fs] %s\n", time.Since(began).Seconds(), fmt.Sprintf(format, args...))
	}
	o.Log = slog.New(slog.NewTextHandler(logFile, nil))
	o.Dir = filepath.Join(a.out, "machine")
	if o.Root, err = lab.Root(); err != nil {
		return err
	}
	o.Progress("results go to %s; the machine takes two minutes to begin with, then it is about %v", a.out, o.Estimate().Round(time.Minute))
	rep, err := storage.Run(ctx, o)
	if rep == nil {
		return err
	}
	return errors.Join(write(a.out, rep), err)
}

// write writes the results and gives the missed gates as an error.
func write(out string, rep *report.Report) error {
	if err := rep.WriteAll(out); err != nil {
		return err
	}
	if err := rep.Terminal(os.Stdout); err != nil {
		return err
	}
	if missed := len(rep.Result.Missed()); missed > 0 {
		return fmt.Errorf("%d of %d gates missed", missed, len(rep.Result.Gates))
	}
	return nil
}
