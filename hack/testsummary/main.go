// Command testsummary reads the events of `go test -json` from standard input and prints a line for
// each package and the output of each failed test. It ends with the tests that took longest without
// their waiting for others, the reason of each skip, the flaky tests, and the counts.
//
//	hack/test.sh | testsummary -o out/test/tests.json --again hack/test.sh
//
// It exits with status 1 if a test or a package failed or did not end, if `go test` itself failed,
// or if no test ran. hack/test.sh appends the status of `go test` as an event. If that status is
// not 0 and no package failed, `go test` itself failed.
//
// A test that failed may be run again once, alone: see again.go.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/spf13/pflag"

	"github.com/kubeveil/kubeveil/internal/commandline"
)

const usage = `Summarize the events of go test -json on standard input.

Usage: testsummary [flags] <EVENTS

Flags:
`

// summary is the "tests" part of kubeveil.io/result/v1.
type summary struct {
	Passed  int     `json:"passed"`
	Failed  int     `json:"failed"`
	Skipped []skip  `json:"skipped"`
	Flaky   []flaky `json:"flaky"`
}

// skip is a test that did not run, and why.
type skip struct {
	Name   string `json:"name"`
	Reason string `json:"reason"`
}

// flaky is a test that failed and then passed alone. Known reports whether flaky.txt lists it.
type flaky struct {
	Name  string `json:"name"`
	Known bool   `json:"known"`
}

func main() {
	flags := commandline.New("testsummary")
	out := flags.StringP("out", "o", "", "write the counts to this `file` as JSON")
	again := flags.String("again", "",
		"run a failed test again with this `program`: PROGRAM again PACKAGE TEST prints its events")
	switch err := commandline.ParseAll(flags, usage, os.Args[1:], os.Stdout); {
	case errors.Is(err, pflag.ErrHelp):
		return
	case err != nil:
		fmt.Fprintln(os.Stderr, "testsummary:", err)
		os.Exit(2)
	}

	s, err := report(os.Stdin, os.Stdout, *again)
	if err == nil && *out != "" {
		err = write(*out, s)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "testsummary:", err)
		os.Exit(1)
	}
	if !s.fine() {
		os.Exit(1)
	}
}

// report reads events from r, runs failed tests again if again is not empty, and prints to w.
func report(r io.Reader, w io.Writer, again string) (summary, error) {
	known, err := parseKnown(knownText)
	if err != nil {
		return summary{}, fmt.Errorf("hack/testsummary/flaky.txt: %w", err)
	}
	t := newRun(w)
	if err := t.read(r); err != nil {
		return t.summary, err
	}

	if again != "" {
		t.runAgain(known, func(pkg, test string) (io.Reader, error) {
			return eventsOf(again, pkg, test)
		})
	}
	t.slowest()
	for _, sk := range t.Skipped {
		fmt.Fprintf(w, "skipped %s: %s\n", sk.Name, sk.Reason)
	}
	t.printFlaky()
	fmt.Fprintf(w, "%d passed, %d failed, %d skipped\n", t.Passed, t.Failed, len(t.Skipped))
	return t.summary, nil
}

// fine reports whether the run passed.
func (s summary) fine() bool {
	return s.Failed == 0 && s.Passed > 0 && s.newlyFlaky() <= maxNew
}

func write(path string, s summary) error {
	data, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, append(data, '\n'), 0o644)
}
