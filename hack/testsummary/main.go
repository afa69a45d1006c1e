// Command testsummary reads the events of `go test -json` from standard input,
// prints a line for each package, the output of each failed test, and at the
// end how many tests passed, failed and were skipped, with the reason of each
// skip. It exits 1 when a test or a package failed, or when none ran.
//
//	go test -json ./... | testsummary -o out/test/result.json
package main

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
)

// event is one line of test2json(1).
type event struct {
	Action, Package, Test, Output, ImportPath string
	Elapsed                                   float64
}

// skip is a test that did not run, and why.
type skip struct {
	Name   string `json:"name"`
	Reason string `json:"reason"`
}

// summary is the "tests" part of kubeveil.io/result/v1.
type summary struct {
	Passed  int    `json:"passed"`
	Failed  int    `json:"failed"`
	Skipped []skip `json:"skipped"`
}

func main() {
	out := flag.String("o", "", "write the counts to this `file` as JSON")
	flag.Parse()
	s, err := summarize(os.Stdin, os.Stdout)
	if err != nil {
		fmt.Fprintln(os.Stderr, "testsummary:", err)
		os.Exit(1)
	}
	if *out != "" {
		if err := write(*out, s); err != nil {
			fmt.Fprintln(os.Stderr, "testsummary:", err)
			os.Exit(1)
		}
	}
	for _, sk := range s.Skipped {
		fmt.Printf("skipped %s: %s\n", sk.Name, sk.Reason)
	}
	fmt.Printf("%d passed, %d failed, %d skipped\n", s.Passed, s.Failed, len(s.Skipped))
	if s.Failed > 0 || s.Passed == 0 {
		os.Exit(1)
	}
}

// summarize reads events from r until it ends and prints to w as they come.
func summarize(r io.Reader, w io.Writer) (summary, error) {
	s := summary{Skipped: []skip{}}
	output := map[string]*strings.Builder{}
	failedTests := map[string]bool{}
	in := bufio.NewReaderSize(r, 1<<20)
	for {
		line, err := in.ReadString('\n')
		if line != "" {
			var e event
			if json.Unmarshal([]byte(line), &e) != nil {
				fmt.Fprint(w, line) // The compiler speaks plainly.
			} else {
				s.add(e, output, failedTests, w)
			}
		}
		if err == io.EOF {
			return s, nil
		}
		if err != nil {
			return s, fmt.Errorf("read events: %w", err)
		}
	}
}

func (s *summary) add(e event, output map[string]*strings.Builder, failedTests map[string]bool, w io.Writer) {
	key := e.Package + " " + e.Test
	switch e.Action {
	case "build-output":
		fmt.Fprint(w, e.Output)
	case "output":
		if output[key] == nil {
			output[key] = &strings.Builder{}
		}
		output[key].WriteString(e.Output)
	case "pass", "skip", "fail":
		s.end(e, key, output, failedTests, w)
		delete(output, key)
	}
}

func (s *summary) end(e event, key string, output map[string]*strings.Builder, failedTests map[string]bool, w io.Writer) {
	text := ""
	if output[key] != nil {
		text = output[key].String()
	}
	if e.Test == "" {
		if e.Action != "skip" { // A package without tests says "skip".
			fmt.Fprintf(w, "%-4s %s (%.1fs)\n", e.Action, e.Package, e.Elapsed)
		}
		if e.Action == "fail" {
			fmt.Fprint(w, text)
			if !failedTests[e.Package] {
				s.Failed++ // It did not build, or died outside a test.
			}
		}
		return
	}
	switch e.Action {
	case "pass":
		s.Passed++
	case "fail":
		s.Failed++
		failedTests[e.Package] = true
		fmt.Fprintf(w, "FAIL %s %s\n%s", e.Package, e.Test, text)
	case "skip":
		s.Skipped = append(s.Skipped, skip{Name: e.Package + "." + e.Test, Reason: reason(text)})
	}
}

// reason is what a test said when it skipped, on one line.
func reason(text string) string {
	var said []string
	for line := range strings.SplitSeq(text, "\n") {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "===") || strings.HasPrefix(line, "---") {
			continue
		}
		said = append(said, line)
	}
	return strings.Join(said, " ")
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
