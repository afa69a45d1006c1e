package session

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/kubeveil/kubeveil/pkg/bench"
	"github.com/kubeveil/kubeveil/pkg/leak"
)

// Outcome is the result of a case. The case passed unless Err or Skipped is set.
type Outcome struct {
	Name string
	Err  error
	// Skipped is the reason why the case was skipped, or empty.
	Skipped string
	// Notes are measurements and observations, one per line of the report.
	Notes []string
	Took  time.Duration
	// Artefacts is the folder that describes a failure.
	Artefacts string
}

func (o Outcome) print(w io.Writer) {
	switch took := fmt.Sprintf("%6.1f s", o.Took.Seconds()); {
	case o.Err != nil:
		fmt.Fprintf(w, "FAILED  %s\n      %s\n", took,
			strings.ReplaceAll(o.Err.Error(), "\n", "\n      "))
		if o.Artefacts != "" {
			fmt.Fprintf(w, "      see %s\n", o.Artefacts)
		}
	case o.Skipped != "":
		fmt.Fprintf(w, "skipped %s  %s\n", took, o.Skipped)
	default:
		fmt.Fprintf(w, "passed  %s\n", took)
	}
	for _, note := range o.Notes {
		fmt.Fprintf(w, "      %s\n", note)
	}
}

// parts holds the oracle's results before and during the control run. Judge receives the results
// after it, or of the whole run if there was no control run.
type parts struct {
	before, control leak.Result
	// ran reports whether there was a control run.
	ran bool
}

// Report is the result of a run.
type Report struct {
	Outcomes []Outcome
	// Leaks is set by Judge.
	Leaks *bench.Leaks
	// Kernel lists the distinct kernel releases of the workers.
	Kernel string
	// Pace is the factor by which waits were extended for slow machines, at the end of the run.
	Pace float64

	parts parts
}

// Names of the outcomes that Judge adds.
const (
	wireCase    = "nothing-in-clear"
	controlCase = "oracle-sees"
)

// Judge adds two outcomes about the traffic on the wire. rest holds the oracle's results after the
// control run, or of the whole run if there was none. One outcome is whether all traffic of
// Kubeveil was encrypted. The other is whether the oracle detects plaintext.
func (r *Report) Judge(rest leak.Result) {
	ours := r.parts.before.Plus(rest)
	r.Leaks = &bench.Leaks{Frames: ours.Frames, Plaintext: ours.Plaintext,
		ControlPlaintext: r.parts.control.Plaintext}
	wire := Outcome{Name: wireCase, Err: ours.Err(),
		Notes: []string{fmt.Sprintf("%d frames, %d plaintext: %v", ours.Frames, ours.Plaintext,
			ours.Kinds)}}
	if wire.Err == nil && ours.Kinds[leak.Tunnel] == 0 {
		wire.Err = errors.New("the oracle saw no tunnel packet")
	}
	control := Outcome{Name: controlCase}
	switch {
	case !r.parts.ran:
		control.Skipped = "the reference network did not run, so it is not proven that the " +
			"oracle detects plaintext"
	case r.parts.control.Plaintext == 0:
		control.Err = errors.New("the oracle saw no plaintext on the reference network, so a " +
			"clean result proves nothing")
	default:
		control.Notes = []string{fmt.Sprintf("%d frames of plaintext of the reference network",
			r.parts.control.Plaintext)}
	}
	r.Outcomes = append(r.Outcomes, wire, control)
}

// Print prints the outcomes that Judge added, and the skipped ones with their reasons. Run has
// already printed the others.
func (r *Report) Print(w io.Writer) {
	for _, o := range r.Outcomes {
		judged := o.Name == wireCase || o.Name == controlCase
		switch {
		case judged:
			fmt.Fprintf(w, "      %-26s ", o.Name)
			o.print(w)
		case o.Skipped != "" && o.Took == 0:
			fmt.Fprintf(w, "      %-26s skipped: %s\n", o.Name, o.Skipped)
		}
	}
}

// Tests counts the outcomes.
func (r *Report) Tests() bench.Tests {
	t := bench.Tests{Skipped: []bench.Skip{}}
	for _, o := range r.Outcomes {
		switch {
		case o.Err != nil:
			t.Failed++
			t.Failures = append(t.Failures, bench.Failure{Name: o.Name, Reason: o.Err.Error()})
		case o.Skipped != "":
			t.Skipped = append(t.Skipped, bench.Skip{Name: o.Name, Reason: o.Skipped})
		default:
			t.Passed++
		}
	}
	return t
}

// Summary returns the closing line.
func (r *Report) Summary() string {
	t := r.Tests()
	line := fmt.Sprintf("%d passed, %d failed, %d skipped", t.Passed, t.Failed, len(t.Skipped))
	if r.Pace > 1 {
		line += fmt.Sprintf(" (slow machines: waits were up to %.1f times as long as usual)",
			r.Pace)
	}
	return line
}
