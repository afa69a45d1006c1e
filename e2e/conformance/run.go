package conformance

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/kubeveil/kubeveil/e2e/conformance/upstream"
)

// Options say what is run, and against what.
type Options struct {
	// Suite is which specs; the zero value is Network.
	Suite Suite
	// Program is e2e.test, Kubectl the kubectl that some specs run.
	Program, Kubectl string
	// Kubeconfig is a file.
	Kubeconfig string
	// Dir gets the artefacts: the processes' logs and reports, a folder each.
	Dir string
	// Registry begins the names of the images: "" for the upstream's own.
	Registry string
	// Emulated, EBPF and Policies are those of Facts.
	Emulated, EBPF, Policies bool
	// ProxyMode is that of Facts.
	ProxyMode string
	// Parallel is how many processes run specs; 0 is one.
	Parallel int
	// Limit is for how long specs are begun, those marked [Conformance] first; 0 is no limit. The
	// rest is reported as skipped for that reason.
	Limit time.Duration
	// Focus limits the specs to those that it finds, and Skip to those that it does not; nil is no
	// limit. The others are not in the report.
	Focus, Skip *regexp.Regexp
	// Log is told of the steps; nil discards.
	Log *slog.Logger
}

// Limits. A spec of the upstream's that waits for all it may wait for takes about a quarter of an
// hour.
const (
	specLimit   = 20 * time.Minute
	batchSize   = 4
	grace       = 2 * time.Minute
	logKept     = 64 << 10
	dnsPatience = 5 * time.Minute
	// alive is how often it is said that specs are still running.
	alive = time.Minute
)

// Run runs the specs and accounts for all of them; specs that failed are in the report. An error
// without a report means that nothing was run; beside one, that the run was cut short, and what had
// no outcome by then is skipped for that reason.
func Run(ctx context.Context, o Options) (*Report, error) {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if err := os.MkdirAll(o.Dir, 0o755); err != nil {
		return nil, err
	}
	wanted, err := o.Wanted(ctx)
	if err != nil {
		return nil, err
	}
	facts, err := o.facts(ctx)
	if err != nil {
		return nil, err
	}
	if o.Registry != "" {
		if err := os.WriteFile(o.repoList(), RepoList(o.Registry), 0o644); err != nil {
			return nil, err
		}
	}
	r := newReport(o.suite(), wanted, facts)
	o.Log.Info("specs of "+r.Group(), "wanted", len(wanted), "run", len(r.todo),
		"nodes", facts.Nodes, "dns", facts.DNS)
	return r, o.account(ctx, r)
}

// account runs what the report wants. It accounts for all, also after an error.
func (o Options) account(ctx context.Context, r *Report) error {
	err := o.runAll(ctx, r)
	why := fmt.Sprintf("not begun within the limit of %s", o.Limit)
	switch {
	case ctx.Err() != nil:
		why = "not ended when the run was interrupted"
	case err != nil:
		why = "not ended when the run was given up: " + firstWords(err.Error(), 300)
	}
	r.leaveOut(why)
	r.Elapsed = time.Since(r.Started)
	return err
}

func (o Options) repoList() string { return filepath.Join(o.Dir, "repo-list.yaml") }

// runAll runs what the report wants: most in batches beside each other, then those that must be
// alone, then once more what has failed without a reason.
func (o Options) runAll(ctx context.Context, r *Report) error {
	if r.suite.names != "" {
		return o.runPolicies(ctx, r)
	}

	var together, single []string
	for _, s := range conformanceFirst(breadthFirst(r.todo)) {
		if upstream.Alone(s) {
			single = append(single, s)
		} else {
			together = append(together, s)
		}
	}
	parallel := max(1, o.Parallel)
	// Few specs are spread over all processes, and of many no long batch is left at the end.
	size := min(batchSize, max(1, len(together)/(4*parallel)))
	if err := o.runBatches(ctx, r, "batch", parallel,
		slices.Collect(slices.Chunk(together, size))); err != nil {
		return err
	}
	if err := o.runBatches(ctx, r, "alone", 1,
		slices.Collect(slices.Chunk(single, batchSize))); err != nil {
		return err
	}
	return o.runBatches(ctx, r, "again", 1, slices.Collect(slices.Chunk(r.unexplained(), 1)))
}

// conformanceFirst returns the specs marked so before the others, else in their order.
func conformanceFirst(specs []string) []string {
	rank := func(s string) int {
		if strings.Contains(s, "[Conformance]") {
			return 0
		}
		return 1
	}
	return slices.SortedStableFunc(slices.Values(specs),
		func(a, b string) int { return rank(a) - rank(b) })
}

// family is what of a volume's spec says of which group of tests it is one: the word after its
// pattern.
var family = regexp.MustCompile(`\[Testpattern: [^\]]*\](?:\[[^\]]*\])* *(?:\[Slow\] *)?([^ ]+)`)

// breadthFirst returns the first spec of each family, then the second of each, and so on: what a
// limit leaves out is more of what was run. Those of no family stay in their order, before all.
func breadthFirst(specs []string) []string {
	seen, rank := map[string]int{}, map[string]int{}
	for _, s := range specs {
		if m := family.FindStringSubmatch(s); m != nil {
			seen[m[1]]++
			rank[s] = seen[m[1]]
		}
	}
	return slices.SortedStableFunc(slices.Values(specs),
		func(a, b string) int { return rank[a] - rank[b] })
}

// over reports whether the limit has passed, so that no more specs begin.
func (o Options) over(r *Report) bool { return o.Limit > 0 && time.Since(r.Started) > o.Limit }

// runBatches runs batches, so many at a time, and tells the report. The first error ends the
// others.
func (o Options) runBatches(ctx context.Context, r *Report, kind string, parallel int,
	batches [][]string) error {
	type result struct {
		outcomes []upstream.Outcome
		err      error
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)

	// In the order given: what is begun last is what a limit leaves out.
	queue, results := make(chan int, len(batches)), make(chan result, len(batches))
	for i := range batches {
		queue <- i
	}

	close(queue)
	for range parallel {
		go func() {
			for i := range queue {
				if o.over(r) {
					results <- result{}
					continue
				}
				outcomes, err := o.runBatch(ctx,
					filepath.Join(o.Dir, fmt.Sprintf("%s-%02d", kind, i+1)), batches[i], r.Facts)
				results <- result{outcomes, err}
			}
		}()
	}

	tick := time.NewTicker(alive)
	defer tick.Stop()
	var first error
	for done := 0; done < len(batches); {
		var got result
		select {
		case got = <-results:
			done++
		case <-tick.C:
			o.Log.Info("specs are running", "kind", kind,
				"batches", fmt.Sprintf("%d of %d done", done, len(batches)), "left", r.left(),
				"since", time.Since(r.Started).Round(time.Second))
			continue
		}
		if got.err != nil && first == nil {
			first = got.err
			cancel(first)
		}
		for _, outcome := range got.outcomes {
			r.add(outcome)
			o.Log.Info(string(outcome.Status), "spec", outcome.Name,
				"took", outcome.Elapsed.Round(time.Second), "message", outcome.Message,
				"left", r.left())
		}
	}

	return first
}

// runBatch runs specs in one process and returns an outcome for each of them, whatever the process
// does. It is an error when the cluster is not one that specs can be run on, and when ctx ends:
// then those that had passed come with it.
func (o Options) runBatch(ctx context.Context, dir string, specs []string,
	facts Facts) ([]upstream.Outcome, error) {
	if err := ctx.Err(); err != nil {
		return nil, context.Cause(ctx)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	if o.suite().names != "" {
		return o.runPolicyTest(ctx, dir, specs)
	}

	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		return nil, err
	}
	defer log.Close()
	limit := time.Duration(len(specs)) * specLimit
	bounded, cancel := context.WithTimeout(ctx, limit+grace)
	defer cancel()
	cmd := exec.CommandContext(bounded, o.Program, o.arguments(dir, specs, facts, limit)...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, log, log

	if o.Registry != "" {
		cmd.Env = append(os.Environ(), RepoListEnv+"="+o.repoList())
	}

	// Interrupted, it deletes its namespaces and writes its report.
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGINT) }
	cmd.WaitDelay = grace
	ended := cmd.Run()
	path := filepath.Join(dir, "junit_01.xml")
	if err := ctx.Err(); err != nil {
		return passed(path, specs), context.Cause(ctx)
	}

	return collect(path, specs, ended)
}

// passed are the specs that had passed when their process was interrupted: whatever else its report
// says may be of the interruption.
func passed(path string, specs []string) []upstream.Outcome {
	reported, err := readJUnit(path)
	if err != nil {
		return nil
	}
	return onlyPassed(reported, specs)
}

func onlyPassed(reported []upstream.Outcome, specs []string) []upstream.Outcome {
	return slices.DeleteFunc(reported, func(o upstream.Outcome) bool {
		return o.Status != upstream.Passed || !slices.Contains(specs, o.Name)
	})
}

func (o Options) arguments(dir string, specs []string, facts Facts, limit time.Duration) []string {
	return append([]string{
		"--kubeconfig=" + o.Kubeconfig, "--kubectl-path=" + o.Kubectl, "--provider=skeleton",
		fmt.Sprintf("--num-nodes=%d", facts.Nodes),
		fmt.Sprintf("--allowed-not-ready-nodes=%d", facts.Others),
		"--report-dir=" + dir, "--e2e-output-dir=" + dir, "--disable-log-dump",
		"--max-nodes-to-gather-from=0",
		"--ginkgo.no-color", "--ginkgo.succinct", "--ginkgo.focus=" + upstream.Focus(specs),
		"--ginkgo.timeout=" + limit.String(),
	}, o.suite().Arguments...)
}

// collect reads the report of a process. A spec that it does not have has failed: the process has
// ended too early. Where a step before all specs has failed, that is the error.
func collect(path string, specs []string, ended error) ([]upstream.Outcome, error) {
	missing := "e2e.test ended before it"
	if ended != nil {
		missing += ": " + ended.Error()
	}
	reported, err := readJUnit(path)
	if err != nil {
		missing += ": " + err.Error()
	}

	byName := map[string]upstream.Outcome{}
	var step error
	for _, outcome := range reported {
		outcome.Log = outcome.Log[max(0, len(outcome.Log)-logKept):]
		if outcome.Name != "" {
			byName[outcome.Name] = outcome
		} else if outcome.Status == upstream.Failed && step == nil {
			step = fmt.Errorf("no spec could be run: %s: %s (its log is beside %s)", outcome.Step,
				outcome.Message, path)
		}
	}

	if len(byName) == 0 && step != nil {
		return nil, step
	}

	outcomes := make([]upstream.Outcome, len(specs))
	for i, spec := range specs {
		outcome, found := byName[spec]
		if !found {
			outcome = upstream.Outcome{Name: spec, Status: upstream.Failed, Message: missing}
		}
		outcomes[i] = outcome
	}

	return outcomes, nil
}

func readJUnit(path string) (outcomes []upstream.Outcome, err error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return upstream.ParseJUnit(io.Reader(f))
}

// firstWords shortens a message for tables.
func firstWords(s string, most int) string {
	s = strings.Join(strings.Fields(s), " ")
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "…"
}
