// Bench-lab measures Kubeveil in the namespace lab and says which of its limits
// are kept:
//
//	bare    pod to pod against a hand-configured wireguard-go, over the same pods, veths and routes
//	capped  pod to pod against the network in clear, over a link of limited rate
//	add     the CNI plugin against the reference plugins ptp and host-local
//	scale   1,000 nodes: from the table to the device, memory, idle CPU
//
// It writes result.json, report.html and report.md into -out and ends with status 1
// when a limit is missed or a part could not be measured. Start reading at parts.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/kubeveil/kubeveil/e2e/bench"
	"github.com/kubeveil/kubeveil/e2e/bench/load"
	"github.com/kubeveil/kubeveil/e2e/bench/report"
	"github.com/kubeveil/kubeveil/e2e/lab"
)

// part is a group of cases that share labs.
type part struct {
	name string
	run  func(*run, context.Context) error
}

var parts = []part{{"bare", (*run).bare}, {"capped", (*run).capped}, {"add", (*run).add}, {"scale", (*run).scale}}

// run is one run of the program.
type run struct {
	settings
	out string
	bin string
	// others is what the machine did beside, in a sentence.
	others string
	runner bench.Runner
	result *bench.Result
	start  time.Time
}

// settings are how long and how often.
type settings struct {
	rounds int
	// tcp and probe are the seconds of a TCP run, without its first, and of one rate of UDP.
	tcp, probe time.Duration
	// adds is the number of ADDs whose median is one sample; pods that of those added at once by workers.
	adds, pods int
	// nodes known in the part scale; idle is for how long it is watched.
	nodes int
	idle  time.Duration
}

var (
	full  = settings{rounds: 5, tcp: 3 * time.Second, probe: time.Second, adds: 11, pods: 200, nodes: 1000, idle: 30 * time.Second}
	quick = settings{rounds: 2, tcp: time.Second, probe: time.Second, adds: 5, pods: 24, nodes: 1000, idle: 10 * time.Second}
)

// limit bounds a run that hangs.
const limit = 30 * time.Minute

func main() {
	out := flag.String("out", "out/bench-lab", "directory for result.json, report.html and report.md")
	short := flag.Bool("quick", false, "fewer rounds and seconds, for development; the gates are the same")
	only := flag.String("only", "", "parts to run, separated by commas; empty runs all")
	seed := flag.Uint64("seed", bench.NewSeed(), "seed of the order of measurements")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("bench-lab did not end within %v", limit))
	defer cancel()
	r := &run{settings: full, out: *out, start: time.Now()}
	if *short {
		r.settings = quick
	}
	r.runner = bench.Runner{Rounds: r.rounds, Seed: *seed, Progress: r.say}
	if err := r.all(ctx, *only); err != nil {
		fmt.Fprintf(os.Stderr, "bench-lab: %v\n", err)
		os.Exit(1)
	}
}

// say prints a line of progress.
func (r *run) say(format string, args ...any) {
	fmt.Printf("[%4.0fs] %s\n", time.Since(r.start).Seconds(), fmt.Sprintf(format, args...))
}

// all runs the parts. One that cannot be measured is a missed gate, and the others still run.
func (r *run) all(ctx context.Context, only string) error {
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
	for _, p := range parts {
		if only != "" && !strings.Contains(","+only+",", ","+p.name+",") {
			continue
		}
		r.say("part %s", p.name)
		err := p.run(r, ctx)
		if ctx.Err() != nil {
			return fmt.Errorf("part %s: %w", p.name, errors.Join(context.Cause(ctx), err))
		}
		if err != nil {
			r.say("part %s failed: %v", p.name, err)
			r.result.Gates = append(r.result.Gates, bench.Gate{Name: "part " + p.name, Want: "measured", Got: err.Error()})
		}
	}
	return r.finish()
}

// lookAround says whether the machine is idle: on one that is not, what CPU limits says little.
func (r *run) lookAround(ctx context.Context) error {
	cores, err := load.Others(ctx, 2*time.Second)
	if err != nil {
		return err
	}
	r.others = fmt.Sprintf("Before the run others kept %.2f of %d cores busy.", cores, r.result.CPUs)
	if cores > 0.1*float64(r.result.CPUs) {
		r.others += " That is too much: figures and gates that CPU limits are not to be trusted."
	}
	r.say("%s", r.others)
	return nil
}

// finish writes the results and gives the missed gates as an error.
func (r *run) finish() error {
	rep := r.report()
	md, err := os.Create(filepath.Join(mkdir(r.out), "report.md"))
	if err != nil {
		return err
	}
	defer md.Close()
	err = errors.Join(r.result.Write(filepath.Join(r.out, "result.json")), rep.WriteHTML(filepath.Join(r.out, "report.html")), rep.Markdown(md))
	if err != nil {
		return err
	}
	if err := rep.Terminal(os.Stdout); err != nil {
		return err
	}
	r.say("written to %s", r.out)
	missed := r.result.Missed()
	if len(missed) == 0 {
		return nil
	}
	err = fmt.Errorf("%d of %d gates missed", len(missed), len(r.result.Gates))
	for _, g := range missed {
		err = fmt.Errorf("%w\n  %s: want %s, got %s", err, g.Name, g.Want, g.Got)
	}
	return err
}

// mkdir makes a directory; that it could not is found by who writes into it.
func mkdir(dir string) string {
	_ = os.MkdirAll(dir, 0o755)
	return dir
}

func (r *run) report() *report.Report {
	return &report.Report{
		Title:  "Kubeveil in the namespace lab: speed and size",
		Lead:   "Each comparison was measured in one run, both sides directly after one another, in random order.",
		Result: r.result, Labels: labels, Notes: append(notes, r.others, fmt.Sprintf("%d rounds, order drawn with seed %d.", r.rounds, r.runner.Seed)),
	}
}
