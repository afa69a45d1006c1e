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

// RunConfig selects the specs and the cluster.
type RunConfig struct {
	// Suite is the suite to run. The zero value means Network.
	Suite Suite
	// Program is the path of e2e.test or of the Go test binary of ClusterPolicies. Kubectl is the
	// path of the kubectl that some specs run.
	Program, Kubectl string
	// Kubeconfig is the path of a kubeconfig file.
	Kubeconfig string
	// Dir receives the artefacts: the logs and reports of each process, in a folder per process.
	Dir string
	// Registry is the prefix of the names of the images. An empty string means the upstream's
	// registries.
	Registry string
	// Emulated, EBPF and Policies are the fields of Facts with the same names.
	Emulated, EBPF, Policies bool
	// ProxyMode is the field of Facts with the same name.
	ProxyMode string
	// Parallel is the number of processes that run specs concurrently. The value 0 means one.
	Parallel int
	// Limit is the time after which no more specs are started. The value 0 means no limit. Specs
	// marked [Conformance] are started first. The report lists specs that were not started as
	// skipped because of the limit.
	Limit time.Duration
	// Focus selects specs by name, and Skip removes specs by name. Nil selects all specs and
	// removes none. Specs that are not selected are not in the report.
	Focus, Skip *regexp.Regexp
	// Log receives the steps. If Log is nil, the steps are not logged.
	Log *slog.Logger
}

// The limit per spec is 20 minutes, because a spec of the upstream takes up to about a quarter of
// an hour if all its waits time out.
const (
	specLimit   = 20 * time.Minute
	batchSize   = 4
	grace       = 2 * time.Minute
	logKept     = 64 << 10
	dnsPatience = 5 * time.Minute
	// alive is the interval of the log messages while specs are still running.
	alive = time.Minute
)

// Run runs the specs and returns a report with a verdict for each. Failed specs are not an error.
// An error without a report means that no specs were run. An error with a report means that the run
// ended early. The report then lists the specs without an outcome as skipped because of the error.
func Run(ctx context.Context, o RunConfig) (*Report, error) {
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

// account runs the specs that the report lists. Every spec gets a verdict, even after an error.
func (o RunConfig) account(ctx context.Context, r *Report) error {
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

func (o RunConfig) repoList() string { return filepath.Join(o.Dir, "repo-list.yaml") }

// runAll runs the specs that the report lists: first most of them in parallel batches, then the
// specs that must run alone, and then the unexplained failures once more.
func (o RunConfig) runAll(ctx context.Context, r *Report) error {
	if r.suite.names != "" {
		return o.runPolicies(ctx, r)
	}

	var together, single []string
	for _, s := range markedFirst(breadthFirst(r.todo), r.suite.mark) {
		if upstream.Alone(s) {
			single = append(single, s)
		} else {
			together = append(together, s)
		}
	}
	parallel := max(1, o.Parallel)
	if r.suite.contexts != "" {
		parallel = 1
	}
	// Batches are small enough that even a few specs are spread over all processes, and that the
	// run does not end with one long batch.
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

// markedFirst returns the specs with those that contain mark first. Otherwise it keeps the order.
func markedFirst(specs []string, mark string) []string {
	rank := func(s string) int {
		if strings.Contains(s, mark) {
			return 0
		}
		return 1
	}
	return slices.SortedStableFunc(slices.Values(specs),
		func(a, b string) int { return rank(a) - rank(b) })
}

// family matches the name of a volume spec. Its submatch is the group of tests to which the spec
// belongs: the word after the test pattern.
var family = regexp.MustCompile(`\[Testpattern: [^\]]*\](?:\[[^\]]*\])* *(?:\[Slow\] *)?([^ ]+)`)

// breadthFirst returns the first spec of each family, then the second of each family, and so on. So
// a limit leaves out some specs of every family rather than whole families. Specs without a family
// come first, in the given order.
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

// over reports whether the limit has passed. No more specs are then started.
func (o RunConfig) over(r *Report) bool { return o.Limit > 0 && time.Since(r.Started) > o.Limit }

// runBatches runs batches, at most parallel at a time, and adds their outcomes to the report. The
// first error cancels the other batches.
func (o RunConfig) runBatches(ctx context.Context, r *Report, kind string, parallel int,
	batches [][]string) error {
	type result struct {
		outcomes []upstream.Outcome
		err      error
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)

	// The queue keeps the given order, so a limit leaves out the last batches.
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

// runBatch runs specs in one process and returns an outcome for each spec, regardless of how the
// process ends. It returns an error if specs cannot run on the cluster or if ctx ends. If ctx ends,
// it also returns the outcomes of the specs that have passed.
func (o RunConfig) runBatch(ctx context.Context, dir string, specs []string,
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

	// When e2e.test is interrupted, it deletes its namespaces and writes its report.
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGINT) }
	cmd.WaitDelay = grace
	ended := cmd.Run()
	path := filepath.Join(dir, junit)
	if err := ctx.Err(); err != nil {
		return o.suite().passed(path, specs), context.Cause(ctx)
	}

	return o.suite().collect(path, specs, ended)
}

// passed returns the outcomes of the specs that had passed when their process was interrupted.
// Other outcomes in the report of the process may be effects of the interruption.
func (s Suite) passed(path string, specs []string) []upstream.Outcome {
	reported, err := s.outcomes(path)
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

// junit is the name of the file in which a process reports the outcomes of its specs.
const junit = "junit_01.xml"

func (o RunConfig) arguments(dir string, specs []string, facts Facts,
	limit time.Duration) []string {
	if o.suite().contexts != "" {
		return o.siteArguments(dir, specs, limit)
	}
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

// collect returns the outcomes in the report of a process. A spec that is missing in the report has
// failed, because the process ended too early. If the report has no specs and a step has failed,
// collect returns the failure of the step as an error.
func (s Suite) collect(path string, specs []string, ended error) ([]upstream.Outcome, error) {
	missing := "the process ended before it"
	if ended != nil {
		missing += ": " + ended.Error()
	}
	reported, err := s.outcomes(path)
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

// outcomes returns the outcomes in the report of a process, with the names of the suite.
func (s Suite) outcomes(path string) ([]upstream.Outcome, error) {
	reported, err := readJUnit(path)
	if err == nil && s.contexts != "" {
		reported = upstream.SiteSpecs(reported)
	}
	return reported, err
}

func readJUnit(path string) (outcomes []upstream.Outcome, err error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return upstream.ParseJUnit(io.Reader(f))
}

// firstWords returns a message on one line for tables. It cuts messages longer than most bytes.
func firstWords(s string, most int) string {
	s = strings.Join(strings.Fields(s), " ")
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "…"
}
