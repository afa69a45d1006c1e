package conformance

import (
	"log/slog"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kubeveil/kubeveil/e2e/conformance/upstream"
	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/filetest"
)

// policyList writes the file of ClusterPolicies.
func policyList(t *testing.T, specs ...string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "specs.txt")
	filetest.Write(t, path, []byte(strings.Join(specs, "\n")+"\n"), 0o644)
	return path
}

// fakeTest writes a shell script that is used instead of the test binary. In the script, $test is
// the name of the test to run, and said prints its argument as a line of package testing.
func fakeTest(t *testing.T, script string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "conformance.test")
	header := "#!/bin/sh\nfor a; do case $a in -test.run=*) test=${a##*/^}; test=${test%$};; " +
		"esac; done\nsaid() { printf '\\026%s\\n' \"$1\"; }\n"
	filetest.Write(t, path, []byte(header+script), 0o755)
	return path
}

// The list has the names of the version that is run. A reduction of their number must be
// deliberate.
func TestClusterPolicySpecs(t *testing.T) {
	suite := ClusterPolicies("testdata/policyspecs.txt")
	specs, err := RunConfig{Suite: suite}.Wanted(t.Context())
	errtest.Must(t, err)
	if r := newReport(suite, specs, labFacts); len(r.todo) < 112 {
		t.Errorf("%d of %d specs are run", len(r.todo), len(specs))
	}
	if n := len(byTest(specs)); n != 30 {
		t.Errorf("%d tests", n)
	}
}

func TestClusterPolicySpecsAreRefused(t *testing.T) {
	for name, tt := range map[string]struct{ list, focus, want string }{
		"nothing":             {"", "", "is empty"},
		"no subtest":          {"CNPA/a\nCNPB", "", `txt:2: "CNPB" is not a TEST/SUBTEST of CNP`},
		"of another upstream": {"[sig-network]", "", "is not a TEST/SUBTEST"},
		"a mistyped focus":    {"CNPA/a", "CPNA", `focus "CPNA" leaves none of the 1 specs of CNP`},
	} {
		t.Run(name, func(t *testing.T) {
			o := RunConfig{Suite: ClusterPolicies(policyList(t, tt.list))}
			if tt.focus != "" {
				o.Focus = regexp.MustCompile(tt.focus)
			}
			if _, err := o.Wanted(t.Context()); err == nil ||
				!strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %v, want %q", err, tt.want)
			}
		})
	}
}

func TestClusterPolicyTest(t *testing.T) {
	const ok, bad = "CNPA/Should_be_accepted", "CNPA/Should_be_denied"
	const passes, fails = "said '--- PASS: TestConformance/" + ok + " (1.00s)'\n",
		"said '=== RUN   TestConformance/" + bad + "'\necho '    h.go:1: it was not'\n" +
			"said '--- FAIL: TestConformance/" + bad + " (1.00s)'\n"
	for name, tt := range map[string]struct {
		script string
		want   []upstream.Status
		// message is part of the last spec's message, or of the error.
		message string
	}{
		"all is well": {passes + "said '--- PASS: TestConformance/" + bad + " (1.00s)'\n",
			[]upstream.Status{upstream.Passed, upstream.Passed}, ""},
		"one fails": {passes + fails + "said '--- FAIL: TestConformance/CNPA (2.00s)'\nexit 1",
			[]upstream.Status{upstream.Passed, upstream.Failed}, "it was not"},
		"it panics": {passes + "echo 'panic: Log in goroutine'\nexit 2",
			[]upstream.Status{upstream.Passed, upstream.Failed},
			"the test ended before it: exit status 2: panic: Log in goroutine"},
		"it skips itself": {"said '=== RUN   TestConformance/CNPA'\n" +
			"echo '    s.go:1: suite does not support X'\n" +
			"said '--- SKIP: TestConformance/CNPA (0.00s)'\n",
			[]upstream.Status{upstream.Skipped, upstream.Skipped}, "suite does not support X"},
		"its policy is refused": {"said '=== RUN   TestConformance/CNPA'\n" +
			"echo '    a.go:1: no matches for kind'\n" +
			"said '--- FAIL: TestConformance/CNPA (0.00s)'\nexit 1",
			[]upstream.Status{upstream.Failed, upstream.Failed}, "no matches for kind"},
		"its policy stays": {passes + "said '--- PASS: TestConformance/" + bad + " (1.00s)'\n" +
			"said '=== NAME  TestConformance/CNPA'\necho '    a.go:1: error deleting resource'\n" +
			"said '--- FAIL: TestConformance/CNPA (2.00s)'\nexit 1",
			[]upstream.Status{upstream.Passed, upstream.Failed},
			"the test failed after its subtests: error deleting resource"},
		"the pods are not ready": {"said '=== RUN   TestConformance'\n" +
			"echo '    s.go:1: error waiting for namespaces'\n" +
			"said '--- FAIL: TestConformance (300.00s)'\nexit 1", nil,
			"no spec could be run: error waiting for namespaces"},
	} {
		t.Run(name, func(t *testing.T) {
			o := RunConfig{Program: fakeTest(t, tt.script), Dir: t.TempDir(),
				Suite: ClusterPolicies(policyList(t, ok, bad))}
			outcomes, err := o.runBatch(t.Context(), filepath.Join(o.Dir, "batch"),
				[]string{ok, bad}, labFacts)
			if tt.want == nil {
				if err == nil || !strings.Contains(err.Error(), tt.message) {
					t.Errorf("error %v, want %q", err, tt.message)
				}
				return
			}
			errtest.Must(t, err)

			var got []upstream.Status
			for _, outcome := range outcomes {
				got = append(got, outcome.Status)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Error(diff)
			}
			if last := outcomes[1].Message; !strings.Contains(last, tt.message) {
				t.Errorf("message %q, want %q", last, tt.message)
			}
		})
	}
}

// Each test runs in a process of its own, one at a time, the test with the fewest subtests first. A
// failed test is repeated once with all its subtests. The pods are removed last.
func TestClusterPoliciesOneTestAtATime(t *testing.T) {
	log := filepath.Join(t.TempDir(), "tests")
	o := RunConfig{Program: fakeTest(t, "echo $test >>"+log+"\ncase $test in\nCNPA) said "+
		"'--- PASS: TestConformance/CNPA/a (1.00s)'; said '--- PASS: TestConformance/CNPA/b "+
		"(1.00s)';;\nCNPB) said '--- FAIL: TestConformance/CNPB/a (1.00s)'; exit 1;;\nesac"),
		Dir: t.TempDir(), Parallel: 3, Log: slog.New(slog.DiscardHandler)}
	specs := []string{"CNPA/a", "CNPB/a", "CNPA/b"}
	o.Suite = ClusterPolicies(policyList(t, specs...))
	r := newReport(o.Suite, specs, Facts{Policies: true})
	errtest.Must(t, o.account(t.Context(), r))

	b := filetest.Read(t, log)
	if diff := cmp.Diff("CNPB\nCNPA\nCNPB\nnone\n", string(b)); diff != "" {
		t.Error(diff)
	}
	for _, v := range r.Verdicts() {
		if want := v.Name != "CNPB/a"; (v.Status == upstream.Passed) != want {
			t.Errorf("%+v", v)
		}
	}
}

// After the limit, no more tests are started.
func TestClusterPoliciesWithinALimit(t *testing.T) {
	o := RunConfig{Program: fakeTest(t, "exit 1"), Dir: t.TempDir(), Limit: time.Minute,
		Log: slog.New(slog.DiscardHandler)}
	o.Suite = ClusterPolicies(policyList(t, "CNPA/a"))
	r := newReport(o.Suite, []string{"CNPA/a"}, labFacts)
	r.Started = time.Now().Add(-time.Hour)
	errtest.Must(t, o.account(t.Context(), r))
	if v := r.Verdicts(); len(v) != 1 || v[0].Status != upstream.Skipped ||
		v[0].Reason != "not begun within the limit of 1m0s" {
		t.Errorf("%+v", v)
	}
}
