package main

import (
	"bytes"
	_ "embed"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"time"
)

// On a busy machine, a test may fail by chance. So if at most maxAgain tests failed, each of them
// is run again once, alone. A test that then passes is flaky. The run passes if at most maxNew
// flaky tests are not listed in flaky.txt, which may list at most maxKnown tests.
//
// The tests of a package are not run again if the output of the package has a race report, a
// finding of the leak oracle or a packet in clear, or if the process ended before its tests. A
// package that leaks goroutines or descriptors fails without a failed test, so it is not run again
// either.
const (
	maxAgain = 5
	maxNew   = 2
	maxKnown = 10
)

// final matches a line of output that makes a failure final: the tests of the package are not run
// again.
var final = regexp.MustCompile(`WARNING: DATA RACE|race detected during execution of test|` +
	`leak oracle: \d+ findings|(left|leaves) in clear\b|the tests left behind:|^panic: |` +
	`^fatal error: `)

// runAgain runs the failed tests again, one at a time. known are the tests in flaky.txt. events
// runs one test and returns its events.
func (t *run) runAgain(known map[string]bool, events func(pkg, test string) (io.Reader, error)) {
	var candidates [][2]string
	for _, pkg := range slices.Sorted(maps.Keys(t.failures)) {
		for _, test := range slices.Sorted(maps.Keys(t.failures[pkg])) {
			if test != "" && !t.final[pkg] {
				candidates = append(candidates, [2]string{pkg, test})
			}
		}
	}
	if len(candidates) > maxAgain {
		fmt.Fprintf(t.w, "%d tests failed: more than %d are not chance, so none is run again\n",
			len(candidates), maxAgain)
		return
	}

	for _, c := range candidates {
		pkg, test := c[0], c[1]
		fmt.Fprintf(t.w, "run %s.%s again, alone\n", pkg, test)
		second := newRun(t.w)
		in, err := events(pkg, test)
		if err == nil {
			err = second.read(in)
		}
		if err != nil {
			fmt.Fprintf(t.w, "run %s.%s again: %v\n", pkg, test, err)
			continue
		}
		if second.Failed > 0 || second.Passed == 0 {
			fmt.Fprintf(t.w, "%s.%s failed twice\n", pkg, test)
			continue
		}

		name := pkg + "." + test
		t.Failed -= t.failures[pkg][test]
		t.Passed += t.failures[pkg][test]
		t.Flaky = append(t.Flaky, flaky{Name: name, Known: known[name]})
	}
}

// eventsOf runs `program again pkg test` and returns the events that it prints, which include the
// exit status of `go test`.
func eventsOf(program, pkg, test string) (io.Reader, error) {
	cmd := exec.Command(program, "again", pkg, test)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	return bytes.NewReader(out), err
}

// newlyFlaky returns the number of flaky tests that are not listed in flaky.txt.
func (s summary) newlyFlaky() (n int) {
	for _, f := range s.Flaky {
		if !f.Known {
			n++
		}
	}
	return n
}

func (t *run) printFlaky() {
	for _, f := range t.Flaky {
		what := "known"
		if !f.Known {
			what = "new: find its cause and add it to hack/testsummary/flaky.txt"
		}
		fmt.Fprintf(t.w, "flaky %s: it failed, and passed alone (%s)\n", f.Name, what)
	}
	if n := t.newlyFlaky(); n > maxNew {
		fmt.Fprintf(t.w, "%d flaky tests are new: more than %d fail the run\n", n, maxNew)
	}
}

//go:embed flaky.txt
var knownText string

// parseKnown returns the tests in the text of flaky.txt. A line has a date, the name of a test with
// its package, and the cause. A line that begins with # is a comment.
func parseKnown(text string) (map[string]bool, error) {
	known := map[string]bool{}
	for i, line := range strings.Split(text, "\n") {
		if line = strings.TrimSpace(line); line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		fields := strings.SplitN(line, " ", 3)
		if len(fields) < 3 {
			return nil, fmt.Errorf("line %d: %q: write DATE PACKAGE.TEST CAUSE", i+1, line)
		}
		if _, err := time.Parse(time.DateOnly, fields[0]); err != nil {
			return nil, fmt.Errorf("line %d: %q is not a date: write it as 2026-01-31", i+1,
				fields[0])
		}
		known[fields[1]] = true
	}
	if len(known) > maxKnown {
		return nil, fmt.Errorf("it lists %d tests: mend some, at most %d may be flaky", len(known),
			maxKnown)
	}
	return known, nil
}
