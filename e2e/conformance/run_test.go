package conformance

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kubeveil/kubeveil/e2e/conformance/upstream"
	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/filetest"
)

// fakeProgram writes a shell script that is used instead of e2e.test. In the script, $dir is the
// folder of the report.
func fakeProgram(t *testing.T, script string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "e2e.test")
	header := "#!/bin/sh\nfor a; do case $a in --report-dir=*) dir=${a#--report-dir=};; " +
		"esac; done\n"
	filetest.Write(t, path, []byte(header+script), 0o755)
	return path
}

func TestBatch(t *testing.T) {
	report, err := filepath.Abs("upstream/testdata/junit.xml")
	errtest.Must(t, err)

	const works, fails, absent = upstream.Group + " Services should work [Conformance]",
		upstream.Group + " Services should fail", upstream.Group + " Services are absent"
	for name, tt := range map[string]struct {
		script string
		specs  []string
		want   []upstream.Status
		// message is the prefix of the last spec's message.
		message string
	}{
		"all is well": {"cp " + report + " $dir/junit_01.xml", []string{works},
			[]upstream.Status{upstream.Passed}, ""},
		"one fails": {"cp " + report + " $dir/junit_01.xml; exit 1",
			[]string{works, fails}, []upstream.Status{upstream.Passed, upstream.Failed},
			"[FAILED] failed,"},
		"one is not in the report": {"cp " + report + " $dir/junit_01.xml; exit 1",
			[]string{works, absent}, []upstream.Status{upstream.Passed, upstream.Failed},
			"the process ended before it: exit status 1"},
		"no report": {"exit 3", []string{works, fails},
			[]upstream.Status{upstream.Failed, upstream.Failed},
			"the process ended before it: exit status 3: open"},
		"half a report": {"head -c 700 " + report + " >$dir/junit_01.xml; exit 1",
			[]string{works}, []upstream.Status{upstream.Failed},
			"the process ended before it: exit status 1: JUnit report"},
	} {
		t.Run(name, func(t *testing.T) {
			o := RunConfig{Program: fakeProgram(t, tt.script), Dir: t.TempDir()}
			outcomes, err := o.runBatch(t.Context(), filepath.Join(o.Dir, "batch"), tt.specs,
				labFacts)
			errtest.Must(t, err)

			var got []upstream.Status
			var names []string
			for _, outcome := range outcomes {
				got, names = append(got, outcome.Status), append(names, outcome.Name)
			}

			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Error(diff)
			}
			if diff := cmp.Diff(tt.specs, names); diff != "" {
				t.Error(diff)
			}
			if last := outcomes[len(outcomes)-1].Message; !strings.HasPrefix(last, tt.message) {
				t.Errorf("message %q, want %q…", last, tt.message)
			}
		})
	}
}

// A cluster that is not ready is one error, not a failure of every spec.
func TestClusterIsNotReady(t *testing.T) {
	const report = `<testsuites><testsuite><testcase name="[SynchronizedBeforeSuite]"><failure>no nodes</failure></testcase></testsuite></testsuites>`
	o := RunConfig{Program: fakeProgram(t, "echo '"+report+"' >$dir/junit_01.xml; exit 1"),
		Dir: t.TempDir()}
	r := newReport(Network(), []string{"a", "b"}, labFacts)
	err := o.runAll(t.Context(), r)
	if err == nil || !strings.Contains(err.Error(),
		"no spec could be run: [SynchronizedBeforeSuite]: no nodes") {
		t.Errorf("error %v", err)
	}
	if n := len(r.Verdicts()); n != 0 {
		t.Errorf("%d verdicts", n)
	}
}

// A failed spec is tried once more, alone.
func TestSecondTry(t *testing.T) {
	report := func(body string) string {
		return `echo '<testsuites><testsuite><testcase name="[It] a">` + body +
			`</testcase></testsuite></testsuites>' >$dir/junit_01.xml`
	}
	o := RunConfig{Program: fakeProgram(t, "case $dir in */again-01) "+report("")+";; *) "+
		report("<failure>slow</failure>")+"; exit 1;; esac"), Dir: t.TempDir(), Parallel: 2,
		Log: slog.New(slog.DiscardHandler)}
	r := newReport(Network(), []string{"a"}, labFacts)
	errtest.Must(t, o.runAll(t.Context(), r))
	if v := r.Verdicts(); len(v) != 1 || v[0].Status != upstream.Passed || v[0].First != "slow" {
		t.Errorf("%+v", v)
	}
}

// A run whose limit has passed does not start specs and lists each spec as skipped.
func TestLimit(t *testing.T) {
	o := RunConfig{Program: fakeProgram(t, "exit 1"), Dir: t.TempDir(), Limit: time.Minute}
	r := newReport(Network(), []string{"a", "b [Serial]"}, labFacts)
	r.Started = time.Now().Add(-time.Hour)
	errtest.Must(t, o.runAll(t.Context(), r))
	r.leaveOut("no time")
	for _, v := range r.Verdicts() {
		if v.Status != upstream.Skipped || v.Reason != "no time" {
			t.Errorf("%+v", v)
		}
	}
	if n := len(r.Verdicts()); n != 2 {
		t.Errorf("%d verdicts", n)
	}
}

// An interrupted run has a verdict for each spec.
func TestInterrupted(t *testing.T) {
	o := RunConfig{Program: fakeProgram(t, "exit 1"), Dir: t.TempDir(),
		Log: slog.New(slog.DiscardHandler)}
	r := newReport(Network(), []string{"a", "b [Serial]"}, labFacts)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := o.account(ctx, r); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
	for _, v := range r.Verdicts() {
		if v.Status != upstream.Skipped || !strings.Contains(v.Reason, "interrupted") {
			t.Errorf("%+v", v)
		}
	}
	if n := len(r.Verdicts()); n != 2 {
		t.Errorf("%d verdicts, want 2", n)
	}
}

// If a cluster breaks in the middle of a run, the earlier outcomes are kept.
func TestGivenUp(t *testing.T) {
	report := func(body string) string {
		return `echo '<testsuites><testsuite>` + body +
			`</testsuite></testsuites>' >$dir/junit_01.xml`
	}
	script := "case $dir in */batch-01) " + report(`<testcase name="[It] a"></testcase>`) +
		";; *) " + report(`<testcase name="[BeforeSuite]"><failure>no nodes</failure></testcase>`) +
		"; exit 1;; esac"
	o := RunConfig{Program: fakeProgram(t, script), Dir: t.TempDir(), Parallel: 1,
		Log: slog.New(slog.DiscardHandler)}
	r := newReport(Network(), []string{"a", "b [Serial]"}, labFacts)
	if err := o.account(t.Context(), r); err == nil {
		t.Error("no error")
	}
	if v := r.Verdicts(); len(v) != 2 || v[0].Status != upstream.Passed ||
		v[1].Status != upstream.Skipped || !strings.Contains(v[1].Reason, "no nodes") {
		t.Errorf("%+v", v)
	}
}

func TestConformanceComesFirst(t *testing.T) {
	got := markedFirst([]string{"b", "c [Conformance]", "a", "d [Conformance]"}, Network().mark)
	if diff := cmp.Diff([]string{"c [Conformance]", "d [Conformance]", "b", "a"}, got); diff != "" {
		t.Error(diff)
	}
}

// A limit leaves out some specs of every family rather than whole families.
func TestEachFamilyComesFirst(t *testing.T) {
	const v = upstream.Volumes + " [Testpattern: Dynamic PV "
	specs := []string{
		"b", "a", v + "(xfs)][Slow] volumes should x", v + "(xfs)] subPath should a",
		v + "(default fs)] subPath should b", v + "(block volmode)] volumes should y",
		v + "(block volmode)] capacity should z",
	}
	want := []string{specs[0], specs[1], specs[2], specs[3], specs[6], specs[4], specs[5]}
	if diff := cmp.Diff(want, breadthFirst(specs)); diff != "" {
		t.Error(diff)
	}
	all := filetest.Read(t, "testdata/volumespecs.txt")

	seen := map[string]bool{}
	for _, s := range strings.Split(strings.TrimSpace(string(all)), "\n") {
		m := family.FindStringSubmatch(s)
		if m == nil || strings.HasPrefix(m[1], "[") && m[1] != "[Feature:Windows]" {
			t.Errorf("of no family: %s", s)
			continue
		}
		seen[m[1]] = true
	}

	if !seen["subPath"] || !seen["multiVolume"] || !seen["snapshottable"] {
		t.Errorf("families %v", seen)
	}
}

// Batches begin in order, with at most the given number of processes at a time.
func TestBatchesInOrder(t *testing.T) {
	log := filepath.Join(t.TempDir(), "order")
	o := RunConfig{Program: fakeProgram(t, "basename $dir >>"+log), Dir: t.TempDir(),
		Log: slog.New(slog.DiscardHandler)}
	r := newReport(Network(), []string{"a", "b", "c"}, labFacts)
	errtest.Must(t, o.runBatches(t.Context(), r, "batch", 1,
		[][]string{{"c"}, {"a"}, {"b"}}))
	b := filetest.Read(t, log)
	if diff := cmp.Diff("batch-01\nbatch-02\nbatch-03\n", string(b)); diff != "" {
		t.Error(diff)
	}
}

func TestBatchTellsTheProgram(t *testing.T) {
	o := RunConfig{
		Program: fakeProgram(t, `printf '%s\n' "$@" >$dir/said; echo $`+RepoListEnv+
			` >>$dir/said`),
		Dir:        t.TempDir(),
		Kubeconfig: "/k", Kubectl: "/bin/kubectl", Registry: Registry,
	}
	dir := filepath.Join(o.Dir, "batch")
	if _, err := o.runBatch(t.Context(), dir, []string{upstream.Group + " a (b)"},
		labFacts); err != nil {
		t.Fatal(err)
	}
	b := filetest.Read(t, filepath.Join(dir, "said"))
	for _, want := range []string{"--kubeconfig=/k\n", "--num-nodes=2\n",
		"--allowed-not-ready-nodes=1\n", `--ginkgo.focus=(?:\[sig-network\] a \(b\))$` + "\n",
		"repo-list.yaml\n"} {
		if !strings.Contains(string(b), want) {
			t.Errorf("no %q in\n%s", want, b)
		}
	}
}

// If a batch is interrupted from outside, only the passed specs are reported. The other specs would
// look like failures.
func TestBatchEndsWithTheContext(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	started := filepath.Join(t.TempDir(), "started")
	errtest.Must(t, syscall.Mkfifo(started, 0o600))
	const half = `<testsuites><testsuite><testcase name="[It] a"></testcase><testcase name="[It] b"><failure>interrupted</failure></testcase></testsuite></testsuites>`
	o := RunConfig{Program: fakeProgram(t, "echo '"+half+"' >$dir/junit_01.xml; echo >"+started+
		"; exec sleep 60"), Dir: t.TempDir()}
	ended := make(chan error, 1)
	var outcomes []upstream.Outcome
	go func() {
		var err error
		outcomes, err = o.runBatch(ctx, filepath.Join(o.Dir, "batch"), []string{"a", "b"}, labFacts)
		ended <- err
	}()
	if _, err := os.ReadFile(started); err != nil { // returns once the script has written
		t.Fatal(err)
	}
	cancel(errors.New("interrupted"))
	if err := <-ended; err == nil || err.Error() != "interrupted" {
		t.Errorf("error %v", err)
	}
	if len(outcomes) != 1 || outcomes[0].Name != "a" {
		t.Errorf("outcomes %+v", outcomes)
	}
}

func TestRepoList(t *testing.T) {
	got := string(RepoList("example.test/images"))
	if !strings.Contains(got, "promoterE2eRegistry: example.test/images\n") ||
		strings.Contains(got, "invalidRegistry") || strings.Contains(got, "privateRegistry") {
		t.Error(got)
	}
}
