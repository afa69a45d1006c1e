package conformance

import (
	"log/slog"
	"slices"
	"strings"
	"testing"

	"github.com/kubeveil/kubeveil/e2e/conformance/upstream"
	"github.com/kubeveil/kubeveil/internal/errtest"
)

// siteReport is a report of mcs-api's suite.
const siteReport = `<testsuites><testsuite>` +
	`<testcase name="[It] A service  should be [ClusterIP, Required]" status="passed"></testcase>` +
	`<testcase name="[It] A lookup should resolve [Optional, DNS]" status="passed"></testcase>` +
	`</testsuite></testsuites>`

var siteNames = []string{upstream.Sites + " A service should be [ClusterIP, Required]",
	upstream.Sites + " A lookup should resolve [Optional, DNS]"}

// fakeSites writes a shell script that is used instead of the test binary. It reports siteReport if
// its arguments contain the words wanted, in this order.
func fakeSites(t *testing.T, wanted string) string {
	t.Helper()
	return fakeProgram(t, `for a; do case $a in -ginkgo.junit-report=*) out=${a#*=};; esac; done
case "$*" in *`+wanted+`*) echo '`+siteReport+`' >"$out";; esac`)
}

// The program lists its specs by a report of a dry run.
func TestSpecsOfSites(t *testing.T) {
	o := RunConfig{Suite: Sites("a,b"), Program: fakeSites(t, "")}
	names, err := o.Wanted(t.Context())
	errtest.Must(t, err)
	if !slices.Equal(names, siteNames) {
		t.Errorf("specs %q", names)
	}

	o.Program = fakeProgram(t, "echo no such flag; exit 2")
	if _, err := o.Wanted(t.Context()); err == nil || !strings.Contains(err.Error(),
		"list of specs: exit status 2: no such flag") {
		t.Errorf("error %v", err)
	}
}

// The gate is that all Required specs pass, so none of them has a reason.
func TestNoRequiredSpecIsExcused(t *testing.T) {
	for _, r := range siteTable {
		if r.expr.MatchString(siteNames[0]) || strings.Contains(r.pattern, "Required") {
			t.Errorf("%q excuses a Required spec", r.pattern)
		}
	}
}

// One process at a time runs the specs in both clusters, Required specs first. The report counts
// them by themselves.
func TestRunOfSites(t *testing.T) {
	o := RunConfig{Suite: Sites("a,b"), Kubeconfig: "both.conf", Dir: t.TempDir(), Parallel: 3,
		Log:     slog.New(slog.DiscardHandler),
		Program: fakeSites(t, "-kubeconfig=both.conf*-contexts=a,b")}
	r := newReport(o.Suite, []string{siteNames[1], siteNames[0]}, labFacts)
	errtest.Must(t, o.account(t.Context(), r))
	if v := r.Verdicts(); len(v) != 2 || v[0].Status != upstream.Passed ||
		v[1].Status != upstream.Passed {
		t.Errorf("%+v", v)
	}
	var b strings.Builder
	errtest.Must(t, r.WriteMarkdown(&b, "here"))
	if !strings.Contains(b.String(), "Of the 1 that are marked Required, 1 passed.") {
		t.Errorf("report %s", &b)
	}
}
