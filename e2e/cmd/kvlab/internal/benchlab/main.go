// Package benchlab measures Kubeveil in the namespace lab and reports which of its limits are kept:
//
//	bare    pod to pod against a hand-configured wireguard-go, over the same pods, veths and routes
//	capped  pod to pod against the network in clear, over a link of limited rate
//	add     the CNI plugin against the reference plugins ptp and host-local
//	scale   1,000 nodes: from the table to the device, memory, idle CPU; then churn
//	churn   1,000 nodes and 250 pods, of both a change a second: CPU, turns, waiting
//
// It writes result.json, report.html and report.md into -out and ends with status 1
// when a limit is missed or a part could not be measured.
//
// It is larger than most packages: the parts share the labs, the samples and the report.
//
// Start reading at parts.
package benchlab

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/kubeveil/kubeveil/e2e/cmd/kvlab/internal/program"
	"github.com/kubeveil/kubeveil/e2e/lab"
	"github.com/kubeveil/kubeveil/pkg/bench"
	"github.com/kubeveil/kubeveil/pkg/bench/load"
	"github.com/kubeveil/kubeveil/pkg/bench/report"
)

// part is a group of cases that share labs.
type part struct {
	name string
	run  func(*run, context.Context) error
}

var (
	parts = []part{{"bare", (*run).bare}, {"capped", (*run).capped}, {"add", (*run).add},
		{"scale", (*run).scale}}
	// named are the names that -only accepts: churn is the second half of scale.
	named = append(slices.Clone(parts), part{"churn", (*run).churn})
)

// run is one run of the program.
type run struct {
	settings
	out string
	bin string
	// others describes the other work of the machine in a sentence.
	others string
	runner bench.Runner
	result *bench.Result
	say    func(format string, args ...any)
}

// settings are how long and how often.
type settings struct {
	rounds int
	// tcp and probe are the seconds of a TCP run, without its first, and of one rate of UDP.
	tcp, probe time.Duration
	// adds is the number of ADDs whose median is one sample; pods that of those added at once by
	// workers.
	adds, pods int
	// nodes known in the part scale; idle is for how long it is watched.
	nodes int
	idle  time.Duration
	// attached are the pods of churn, churned is for how long it is watched.
	attached int
	churned  time.Duration
}

var (
	full = settings{rounds: 5, tcp: 3 * time.Second, probe: time.Second, adds: 11, pods: 200,
		nodes: 1000, idle: 30 * time.Second,
		attached: 250, churned: 2 * time.Minute}
	quick = settings{rounds: 2, tcp: time.Second, probe: time.Second, adds: 5, pods: 24,
		nodes: 1000, idle: 10 * time.Second,
		attached: 250, churned: 30 * time.Second}
)

// limit bounds a run that hangs.
const limit = 30 * time.Minute

const usage = `kvlab bench lab measures Kubeveil in namespaces of this machine and says which of its
limits are kept.

Usage: kvlab bench lab [flags]

Examples:
  kvlab bench lab                    all of it, about a quarter of an hour on two cores
  kvlab bench lab -quick -only add   a look at one part: bare, capped, add, scale or churn

Flags:
`

// Command returns the verb.
func Command() *cobra.Command {
	flags := flag.NewFlagSet("kvlab bench lab", flag.ContinueOnError)
	out := flags.String("out", "out/bench-lab",
		"`folder` for result.json, report.html and report.md; emptied first")
	short := flags.Bool("quick", false,
		"fewer rounds and seconds, for development; the gates are the same")
	only := flags.String("only", "", "`parts` to run, separated by commas (default: all)")
	seed := flags.Uint64("seed", bench.NewSeed(), "`seed` of the order of measurements")
	return program.Command("measure in namespaces against bare wireguard-go and in clear",
		flags, usage, func() (program.Run, error) {
			r := &run{settings: full, out: *out, say: program.Progress(os.Stdout)}
			if *short {
				r.settings = quick
			}
			r.runner = bench.Runner{Rounds: r.rounds, Seed: *seed, Progress: r.say}
			chosen, err := choose(*only)
			return program.Within(limit, func(ctx context.Context) error {
				return r.all(ctx, chosen)
			}), err
		})
}

// choose returns the parts of a list of names; an empty one names all.
func choose(list string) ([]part, error) {
	if list == "" {
		return parts, nil
	}
	var chosen []part
	for name := range strings.SplitSeq(list, ",") {
		i := slices.IndexFunc(named, func(p part) bool { return p.name == name })
		if i < 0 {
			return nil, fmt.Errorf("-only %s: %q is none of bare, capped, add, scale, churn", list,
				name)
		}
		chosen = append(chosen, named[i])
	}
	return chosen, nil
}

// all runs the parts. One that cannot be measured is a missed gate, and the others still run.
func (r *run) all(ctx context.Context, chosen []part) (err error) {
	if r.out, err = program.Folder(r.out); err != nil {
		return err
	}
	root, err := lab.Root()
	if err != nil {
		return err
	}
	if r.result, err = bench.New(bench.Namespaces, root); err != nil {
		return err
	}

	r.bin = filepath.Join(root, "out/bin")
	r.say("%s Results go to %s.", r.result.Caveat(), r.out)
	if err := r.lookAround(ctx); err != nil {
		return err
	}

	for _, p := range chosen {
		r.say("part %s", p.name)
		err := p.run(r, ctx)
		if ctx.Err() != nil {
			return fmt.Errorf("part %s: %w", p.name, errors.Join(context.Cause(ctx), err))
		}
		if err != nil {
			r.say("part %s failed: %v", p.name, err)
			r.result.Gates = append(r.result.Gates,
				bench.Gate{Name: "part " + p.name, Want: "measured", Got: err.Error()})
		}
	}

	gates, err := bench.Judge(r.result, "bench-lab")
	if err != nil {
		return err
	}

	r.result.Gates = gates
	return program.Finish(r.out, r.report(), os.Stdout)
}

// lookAround records how busy the machine is: on a busy one, CPU-bound figures mean little.
func (r *run) lookAround(ctx context.Context) error {
	cores, err := load.Others(ctx, 2*time.Second)
	if err != nil {
		return err
	}
	r.others = fmt.Sprintf("Before the run others kept %.2f of %d cores busy.", cores,
		r.result.CPUs)
	if cores > 0.1*float64(r.result.CPUs) {
		r.others += " That is too much: figures and gates that CPU limits are not to be trusted."
	}
	r.say("%s", r.others)
	return nil
}

func (r *run) report() *report.Report {
	return &report.Report{
		Title: "Kubeveil in the namespace lab: speed and size",
		Lead: "Each comparison was measured in one run, both sides directly after one another, " +
			"in random order.",
		Result: r.result, Labels: labels, Notes: append(notes, r.others,
			fmt.Sprintf("%d rounds, order drawn with seed %d.", r.rounds, r.runner.Seed)),
	}
}
