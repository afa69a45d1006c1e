package conformance

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/kubeveil/kubeveil/e2e/conformance/upstream"
	"github.com/kubeveil/kubeveil/pkg/bench"
	"github.com/kubeveil/kubeveil/pkg/leak"
)

// Verdict is the outcome of a spec, with the reason for it.
type Verdict struct {
	upstream.Outcome
	// Reason explains why a spec was not run, skipped itself or failed. It is empty if the spec
	// passed or the reason is unknown.
	Reason string
	// Known reports whether the table lists this failure.
	Known bool
	// First is the message of the first try. It is empty if the spec was tried once.
	First string
}

// Report contains the verdict of every spec of a run.
type Report struct {
	Facts   Facts
	Started time.Time
	Elapsed time.Duration
	// Wire is the result of an oracle that listened between the nodes from before the first boot.
	// Nil means that the run had no oracle.
	Wire *leak.Result

	suite    Suite
	verdicts map[string]*Verdict
	todo     []string
	waiting  map[string]bool
}

// newReport decides which specs are run. It records the others as skipped, with the reason.
func newReport(suite Suite, specs []string, facts Facts) *Report {
	r := &Report{suite: suite, Facts: facts, Started: time.Now(), verdicts: map[string]*Verdict{},
		waiting: map[string]bool{}}
	for _, s := range specs {
		if why, found := suite.find(notRun, s, facts); found {
			r.verdicts[s] = &Verdict{Outcome: upstream.Outcome{Name: s, Status: upstream.Skipped,
				Message: why}, Reason: why}
			continue
		}
		r.todo, r.waiting[s] = append(r.todo, s), true
	}
	return r
}

// add records the outcome of a try.
func (r *Report) add(o upstream.Outcome) {
	v := &Verdict{Outcome: o}
	if before := r.verdicts[o.Name]; before != nil {
		v.First = before.Message
	}
	switch o.Status {
	case upstream.Failed:
		v.Reason, v.Known = r.suite.find(fails, o.Name, r.Facts)
	case upstream.Skipped:
		v.Reason = "the test skips itself: " + o.Message
	}
	r.verdicts[o.Name] = v
	delete(r.waiting, o.Name)
}

// Group returns the prefix of the names of the specs.
func (r *Report) Group() string { return r.suite.Group }

// leaveOut records the specs that have no outcome as skipped for the reason why.
func (r *Report) leaveOut(why string) {
	for s := range r.waiting {
		r.verdicts[s] = &Verdict{Outcome: upstream.Outcome{Name: s, Status: upstream.Skipped,
			Message: why}, Reason: why}
	}
	clear(r.waiting)
}

// left returns the number of specs without an outcome.
func (r *Report) left() int { return len(r.waiting) }

// unexplained returns the names of the specs that failed without a reason in the table.
func (r *Report) unexplained() []string {
	var out []string
	for _, v := range r.Verdicts() {
		if v.Status == upstream.Failed && !v.Known {
			out = append(out, v.Name)
		}
	}
	return out
}

// Verdicts returns all verdicts, sorted by name.
func (r *Report) Verdicts() []Verdict {
	out := make([]Verdict, 0, len(r.verdicts))
	for _, v := range r.verdicts {
		out = append(out, *v)
	}
	slices.SortFunc(out, func(a, b Verdict) int { return strings.Compare(a.Name, b.Name) })
	return out
}

// Unexplained returns the failures without a reason.
func (r *Report) Unexplained() []Verdict {
	return r.only(func(v Verdict) bool { return v.Status == upstream.Failed && !v.Known })
}

// only returns the verdicts for which the function is returns true.
func (r *Report) only(is func(Verdict) bool) []Verdict {
	return slices.DeleteFunc(r.Verdicts(), func(v Verdict) bool { return !is(v) })
}

// Result adds the report to result, which bench.New made, and returns it. All suites share the
// format of results. The gates that Result adds judge the run: every failure has a listed reason,
// at least one spec passed, and an oracle, if the run had one, saw nothing of the cluster in clear.
func (r *Report) Result(result *bench.Result) *bench.Result {
	result.Facts = r.Facts.byName()
	for _, v := range r.Verdicts() {
		switch v.Status {
		case upstream.Passed:
			result.Tests.Passed++
		case upstream.Skipped:
			result.Tests.Skipped = append(result.Tests.Skipped,
				bench.Skip{Name: v.Name, Reason: v.Reason})
		case upstream.Failed:
			result.Tests.Failed++
			result.Tests.Failures = append(result.Tests.Failures,
				bench.Failure{Name: v.Name, Reason: v.why()})
		}
	}
	result.Gates = append(result.Gates, bench.Unexplained(len(r.Unexplained())),
		bench.Gate{Name: "upstream specs that pass", Want: "1 or more",
			Got: fmt.Sprint(result.Tests.Passed), OK: result.Tests.Passed > 0})
	if r.Wire != nil {
		result.Gates = append(result.Gates, clearGate(*r.Wire))
	}
	return result
}

// clearGate requires that the oracle saw nothing of the cluster in clear, did not miss a frame, and
// saw tunnel traffic. Other findings do not count, because some specs send traffic that does not
// belong to the cluster.
func clearGate(wire leak.Result) bench.Gate {
	return bench.Gate{
		Name: "nothing in clear on the wire",
		Want: "0 frames with plaintext, none missed, some of tunnels",
		Got: fmt.Sprintf("%d of %d with plaintext, %d missed, %d of tunnels", wire.Plaintext,
			wire.Frames, wire.Dropped, wire.Kinds[leak.Tunnel]),
		OK: wire.Plaintext == 0 && wire.Dropped == 0 && wire.Kinds[leak.Tunnel] > 0,
	}
}

// why returns the reason of a failure, or its message if no reason is listed.
func (v Verdict) why() string {
	if v.Known {
		return "known: " + v.Reason
	}
	return "no reason is listed: " + cmp.Or(firstWords(v.Message, 400), "no message")
}

// Outcomes returns all outcomes for upstream.WriteJUnit. A known failure remains a failure.
func (r *Report) Outcomes() []upstream.Outcome {
	var out []upstream.Outcome
	for _, v := range r.Verdicts() {
		if v.Known {
			v.Message = "known: " + v.Reason + "\n" + v.Message
		}
		out = append(out, v.Outcome)
	}
	return out
}

// WriteMarkdown writes the report as Markdown. The argument on describes the machines of the run.
func (r *Report) WriteMarkdown(w io.Writer, on string) error {
	var b strings.Builder
	passed := r.only(func(v Verdict) bool { return v.Status == upstream.Passed })
	failed := r.only(func(v Verdict) bool { return v.Status == upstream.Failed })
	skipped := r.only(func(v Verdict) bool { return v.Status == upstream.Skipped })
	fmt.Fprintf(&b, "# Upstream conformance, %s\n\n%s. %d nodes take pods", r.suite.Group, on,
		r.Facts.Nodes)
	if r.Facts.EBPF {
		b.WriteString(", only Kubeveil translates services")
	}
	if r.Facts.ProxyMode != "" {
		fmt.Fprintf(&b, ", kube-proxy is in mode %s", r.Facts.ProxyMode)
	}
	if r.Facts.Policies {
		b.WriteString(", Kubeveil enforces NetworkPolicy")
	}
	fmt.Fprintf(&b, "; begun %s, %s.\n\n", r.Started.UTC().Format(time.RFC3339),
		r.Elapsed.Round(time.Second))
	fmt.Fprintf(&b, "| passed | failed, known | failed, no reason | skipped "+
		"|\n|---|---|---|---|\n| %d | %d | %d | %d |\n",
		len(passed), len(failed)-len(r.Unexplained()), len(r.Unexplained()), len(skipped))
	marked := func(v Verdict) bool {
		return r.suite.mark != "" && strings.Contains(v.Name, r.suite.mark)
	}
	if all := len(r.only(marked)); all > 0 {
		fmt.Fprintf(&b, "\nOf the %d that are marked %s, %d passed.\n", all, r.suite.mark,
			len(r.only(func(v Verdict) bool { return marked(v) && v.Status == upstream.Passed })))
	}
	if r.Wire != nil {
		fmt.Fprintf(&b, "\nOn the wire: %s.\n", clearGate(*r.Wire).Got)
	}

	section(&b, "Failed, and no reason is listed", r.Unexplained(),
		func(v Verdict) string { return firstWords(v.Message, 300) })
	section(&b, "Failed, as known", r.only(func(v Verdict) bool { return v.Known }),
		func(v Verdict) string { return v.Reason })
	section(&b, "Listed as failing, and passed", r.only(func(v Verdict) bool {
		_, listed := r.suite.find(fails, v.Name, r.Facts)
		return listed && v.Status == upstream.Passed
	}), func(Verdict) string { return "take it off the list, or say when it fails" })
	section(&b, "Passed on the second try, alone", r.only(func(v Verdict) bool {
		return v.Status == upstream.Passed && v.First != ""
	}),
		func(v Verdict) string { return "first: " + firstWords(v.First, 300) })
	groups := map[string][]Verdict{}
	for _, v := range skipped {
		groups[v.Reason] = append(groups[v.Reason], v)
	}
	b.WriteString("\n## Skipped\n")
	for _, why := range slices.Sorted(maps.Keys(groups)) {
		fmt.Fprintf(&b, "\n%d: %s\n\n", len(groups[why]), why)
		for _, v := range groups[why] {
			fmt.Fprintf(&b, "- %s\n", v.short())
		}
	}
	section(&b, "Passed", passed, func(v Verdict) string {
		return v.Elapsed.Round(time.Second).String()
	})
	_, err := io.WriteString(w, b.String())
	return err
}

func section(b *strings.Builder, title string, verdicts []Verdict, remark func(Verdict) string) {
	if len(verdicts) == 0 {
		return
	}
	fmt.Fprintf(b, "\n## %s\n\n| spec | |\n|---|---|\n", title)
	cell := strings.NewReplacer("|", `\|`, "<", "&lt;")
	for _, v := range verdicts {
		fmt.Fprintf(b, "| %s | %s |\n", cell.Replace(v.short()), cell.Replace(remark(v)))
	}
}

// short returns the spec's name without the prefix of its group.
func (v Verdict) short() string {
	name := strings.TrimPrefix(strings.TrimPrefix(v.Name, upstream.Volumes), upstream.Sites)
	return strings.TrimSpace(strings.TrimPrefix(name, upstream.Group))
}
