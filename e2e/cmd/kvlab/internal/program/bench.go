package program

import (
	"context"
	"os"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/kubeveil/kubeveil/internal/commandline"
	"github.com/kubeveil/kubeveil/pkg/bench"
	"github.com/kubeveil/kubeveil/pkg/bench/report"
	"github.com/kubeveil/kubeveil/pkg/bench/suite"
)

// Bench is a verb of kvlab bench.
type Bench struct {
	// Flags has the flags that all these verbs share. A verb adds its own before Command.
	Flags *pflag.FlagSet
	// Out is the folder for results.
	Out string

	usage  string
	choice *suite.Choice
}

// NewBench returns the verb of that name. Its flags fill choice, whose values are their defaults.
// Command and Measure set the rest of it.
func NewBench(name, usage string, choice *suite.Choice) *Bench {
	b := &Bench{Flags: commandline.New("kvlab bench " + name), usage: usage, choice: choice}
	b.Flags.StringVar(&b.Out, "out", "out/bench-"+name,
		"`folder` for result.json, report.html, report.md and logs; emptied first")
	b.Flags.DurationVar(&choice.Limit, "limit", choice.Limit, "time after which the run is ended")
	b.Flags.IntVar(&choice.Rounds, "rounds", choice.Rounds, "number of samples of each side")
	b.Flags.Uint64Var(&choice.Seed, "seed", bench.NewSeed(), "`seed` of the order of measurements")
	b.Flags.StringSliceVar(&choice.Parts, "parts", choice.Parts, "`parts` to measure")
	return b
}

// Command returns the verb with its flags. read checks the command line and returns the program to
// run.
func (b *Bench) Command(short string, read func() (Run, error)) *cobra.Command {
	return Command(short, b.Flags, b.usage, func() (Run, error) {
		b.choice.Progress = Progress(os.Stdout)
		return read()
	})
}

// Measure returns the program that measures and finishes the report. measure gets an empty folder
// for results, and the choice has the root of the repository.
func (b *Bench) Measure(
	measure func(ctx context.Context, folder string) (*report.Report, error)) Run {
	return func(ctx context.Context) error {
		return Measure(b.Out, func(root, folder string) (*report.Report, error) {
			b.choice.Root = root
			b.choice.Progress("results go to %s", folder)
			return measure(ctx, folder)
		})
	}
}

// Suite returns the verb of a suite whose configuration is o. It adds an estimate of the duration,
// if the configuration has one. run gets the configuration with the root of the repository.
func Suite[C interface{ Check() error }](b *Bench, short string, o *C,
	run func(context.Context, C) (*report.Report, error)) *cobra.Command {
	return b.Command(short, func() (Run, error) {
		return b.Measure(func(ctx context.Context, _ string) (*report.Report, error) {
			if e, is := any(*o).(interface{ Estimate() time.Duration }); is {
				b.choice.Progress("it takes about %v", e.Estimate().Round(time.Minute))
			}
			return run(ctx, *o)
		}), (*o).Check()
	})
}
