package conformance

import (
	"bytes"
	"context"
	"errors"
	"fmt"
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

// policyTest is the test of hack/tools/network-policy-api that runs the upstream's tests as
// subtests.
const policyTest = "TestConformance"

// These limits are parameters of the upstream's suite. Emulated machines need minutes to start its
// 70 containers, and seconds for each `exec` that tries a connection.
const (
	podPatience  = 15 * time.Minute
	pokePatience = time.Minute
)

// panicLine begins the report of a panic, which ends the process. The upstream's tests may log a
// connection after its subtest has failed, and package testing panics then.
var panicLine = regexp.MustCompile(`(?m)^panic: .*$`)

// ClusterPolicies returns the tests of ClusterNetworkPolicy. The file at list has their names, one
// per line, as hack/tools/network-policy-api/list prints them.
//
// A spec is a subtest of one of the upstream's tests. A test runs in a process of its own, with all
// its subtests. Tests share pods and the policies of the whole cluster, so they run one at a time,
// regardless of RunConfig.Parallel.
func ClusterPolicies(list string) Suite {
	return Suite{Group: upstream.ClusterPolicies, reasons: policyTable, names: list}
}

// policyNames returns the names in the file list of ClusterPolicies.
func (s Suite) policyNames() ([]string, error) {
	b, err := os.ReadFile(s.names)
	if err != nil {
		return nil, fmt.Errorf("list of tests: %w", err)
	}
	names := strings.Fields(string(b))
	if len(names) == 0 {
		return nil, fmt.Errorf("list of tests: %s is empty", s.names)
	}
	for i, n := range names {
		if test, subtest, ok := strings.Cut(n, "/"); !ok || subtest == "" ||
			!strings.HasPrefix(test, s.Group) {
			return nil, fmt.Errorf("list of tests: %s:%d: %q is not a TEST/SUBTEST of %s", s.names,
				i+1, n, s.Group)
		}
	}
	return names, nil
}

// testOf returns the name of the test to which the subtest spec belongs.
func testOf(spec string) string {
	test, _, _ := strings.Cut(spec, "/")
	return test
}

// byTest returns a batch of specs for each test. The tests are in the order of their first specs.
func byTest(specs []string) [][]string {
	var batches [][]string
	place := map[string]int{}
	for _, s := range specs {
		test := testOf(s)
		i, found := place[test]
		if !found {
			i = len(batches)
			place[test], batches = i, append(batches, nil)
		}
		batches[i] = append(batches[i], s)
	}
	return batches
}

// runPolicies runs the specs that the report lists. It then repeats the unexplained failures once,
// and removes the pods of the tests. Tests with few subtests come first, so that a limit leaves out
// few tests.
func (o RunConfig) runPolicies(ctx context.Context, r *Report) error {
	defer o.removePods(ctx)
	batches := byTest(r.todo)
	slices.SortStableFunc(batches, func(a, b []string) int { return len(a) - len(b) })
	if err := o.runBatches(ctx, r, "batch", 1, batches); err != nil {
		return err
	}
	return o.runBatches(ctx, r, "again", 1, byTest(r.unexplained()))
}

// runPolicyTest is like runBatch for specs that all belong to one test.
func (o RunConfig) runPolicyTest(ctx context.Context, dir string,
	specs []string) ([]upstream.Outcome, error) {
	limit := podPatience + time.Duration(len(specs))*specLimit
	path := filepath.Join(dir, "log")
	err := o.goTest(ctx, path, limit, testOf(specs[0]), "-cleanup-base-resources=false")
	log, readErr := os.ReadFile(path)
	if readErr != nil {
		return nil, errors.Join(err, readErr)
	}

	reported, parseErr := upstream.ParseGoTest(bytes.NewReader(log), policyTest)
	if ctx.Err() != nil {
		return onlyPassed(reported, specs), context.Cause(ctx)
	}
	if panicked := panicLine.Find(log); err != nil && panicked != nil {
		err = fmt.Errorf("%w: %s", err, panicked)
	}
	return collectPolicies(path, specs, reported, errors.Join(err, parseErr))
}

// goTest runs the program for one of the upstream's tests. Its output is written to the file log.
func (o RunConfig) goTest(ctx context.Context, log string, limit time.Duration, test string,
	more ...string) error {
	f, err := os.Create(log)
	if err != nil {
		return err
	}
	defer f.Close()
	bounded, cancel := context.WithTimeout(ctx, limit+grace)
	defer cancel()
	cmd := exec.CommandContext(bounded, o.Program, append([]string{
		"-test.v=test2json", "-test.run=^" + policyTest + "$/^" + regexp.QuoteMeta(test) + "$",
		"-test.timeout=" + limit.String(), "-kubeconfig=" + o.Kubeconfig, "-all-features",
		"-ready-timeout=" + podPatience.String(), "-poke-timeout=" + pokePatience.String(),
	}, more...)...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = filepath.Dir(log), f, f

	// SIGTERM suffices, because a test binary does not write a report when it is interrupted.
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = grace
	return cmd.Run()
}

// collectPolicies returns an outcome for each spec. If the test skipped itself, its specs are
// skipped for the same reason. A spec that did not end has failed. If the test failed after its
// subtests, the last subtest counts as failed. collectPolicies returns an error if the test did not
// begin, for example because the pods were not ready.
func collectPolicies(path string, specs []string, reported []upstream.Outcome,
	ended error) ([]upstream.Outcome, error) {
	missing := "the test ended before it"
	if ended != nil {
		missing += ": " + ended.Error()
	}

	specOf, steps := map[string]upstream.Outcome{}, map[string]upstream.Outcome{}
	failed := false
	for _, o := range reported {
		o.Log = o.Log[max(0, len(o.Log)-logKept):]
		if o.Name == "" {
			steps[o.Step] = o
			continue
		}
		specOf[o.Name] = o
		failed = failed || o.Status == upstream.Failed
	}

	test, begun := steps[testOf(specs[0])]
	if root := steps[policyTest]; !begun && len(specOf) == 0 && root.Status == upstream.Failed {
		return nil, fmt.Errorf("no spec could be run: %s (its log is %s)", root.Message, path)
	}

	outcomes := make([]upstream.Outcome, len(specs))
	for i, spec := range specs {
		outcome, found := specOf[spec]
		switch {
		case found:
		case begun && test.Status == upstream.Skipped:
			outcome = upstream.Outcome{Name: spec, Status: upstream.Skipped, Message: test.Message}
		case begun && test.Status == upstream.Failed && !failed:
			outcome = upstream.Outcome{Name: spec, Status: upstream.Failed, Message: test.Message,
				Log: test.Log}
		default:
			outcome = upstream.Outcome{Name: spec, Status: upstream.Failed, Message: missing}
		}
		outcomes[i] = outcome
	}

	if last := &outcomes[len(outcomes)-1]; !failed && begun && test.Status == upstream.Failed &&
		last.Status == upstream.Passed {
		last.Status, last.Log = upstream.Failed, test.Log
		last.Message = "the test failed after its subtests: " + test.Message
	}
	return outcomes, nil
}

// removePods removes the namespaces of the tests, even after an interrupt. It logs a failure.
func (o RunConfig) removePods(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), grace)
	defer cancel()
	err := o.goTest(ctx, filepath.Join(o.Dir, "removal.log"), grace, "none",
		"-cleanup-base-resources=true")
	if err != nil {
		o.Log.Warn("the namespaces of the tests are still there: delete network-policy-conformance-*",
			"error", err)
	}
}
