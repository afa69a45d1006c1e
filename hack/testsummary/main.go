// Command testsummary reads the events of `go test -json` from standard input,
// prints a line for each package, the output of each failed test, and at the
// end which tests took longest, without their waiting for others, and how many passed, failed and were skipped, with the
// reason of each skip. It exits 1 when a test or a package failed or began and has no end, or
// when none ran. That go test itself failed, before there were events, it cannot see:
// the caller keeps the status of go test.
//
//	go test -json ./... | testsummary -o out/test/tests.json
package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
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
	u := unfinished{output: map[string]*strings.Builder{}, failedTests: map[string]bool{},
		tests: map[string][]string{}}
	seconds := map[string]float64{}

	in := bufio.NewReaderSize(r, 1<<20)
	for {
		line, err := in.ReadString('\n')
		if line != "" {
			var e event
			if json.Unmarshal([]byte(line), &e) != nil {
				fmt.Fprint(w, line) // The compiler speaks plainly.
			} else {
				s.add(e, u, w)
				took := e.Elapsed - waited(e.Output)
				if took != 0 && e.Test != "" && !strings.Contains(e.Test, "/") {
					seconds[e.Package+"."+e.Test] += took
				}
			}
		}

		if err == io.EOF {
			for _, p := range slices.Sorted(maps.Keys(u.tests)) {
				s.end(event{Action: "fail", Package: p, Output: ": it began and did not end"}, u, w)
			}
			slowest(seconds, w)
			return s, nil
		}

		if err != nil {
			return s, fmt.Errorf("read events: %w", err)
		}
	}
}

// waitedLine is what a test says that waited for the labs of others, see e2e/node/nodetest.
var waitedLine = regexp.MustCompile(`: waited (\d+\.\d) s for other labs\n$`)

// waited returns the seconds that a line of a test's output says it waited, or 0.
func waited(output string) float64 {
	m := waitedLine.FindStringSubmatch(output)
	if m == nil {
		return 0
	}
	seconds, _ := strconv.ParseFloat(m[1], 64) // the expression has a number alone
	return seconds
}

// slow is how many tests are named as those that took longest.
const slow = 10

// slowest prints which tests took longest, given how many seconds each took.
func slowest(seconds map[string]float64, w io.Writer) {
	names := slices.SortedFunc(maps.Keys(seconds),
		func(a, b string) int { return cmp.Compare(seconds[b], seconds[a]) })
	for _, name := range names[:min(slow, len(names))] {
		fmt.Fprintf(w, "%6.1f s %s\n", seconds[name], name)
	}
}

// unfinished is what is known of packages and tests that have not ended.
type unfinished struct {
	// output is by package and test.
	output map[string]*strings.Builder
	// failedTests are packages with a test that failed.
	failedTests map[string]bool
	// tests are those that began, by package; a package that began is in it without any.
	tests map[string][]string
}

func (s *summary) add(e event, u unfinished, w io.Writer) {
	key := e.Package + " " + e.Test
	switch e.Action {
	case "build-output":
		fmt.Fprint(w, e.Output)
	case "start":
		u.tests[e.Package] = nil
	case "run":
		u.tests[e.Package] = append(u.tests[e.Package], e.Test)
	case "output":
		if u.output[key] == nil {
			u.output[key] = &strings.Builder{}
		}
		u.output[key].WriteString(e.Output)
	case "pass", "skip", "fail":
		s.end(e, u, w)
	}
}

// end counts the end of a test or of a package; with a package its tests end, and those that have
// not are failures.
func (s *summary) end(e event, u unfinished, w io.Writer) {
	key := e.Package + " " + e.Test
	text := ""
	if u.output[key] != nil {
		text = u.output[key].String()
		delete(u.output, key)
	}
	if e.Test == "" {
		s.endPackage(e, u, text, w)
		return
	}
	if tests, ok := u.tests[e.Package]; ok {
		u.tests[e.Package] = slices.DeleteFunc(tests, func(t string) bool { return t == e.Test })
	}
	switch e.Action {
	case "pass":
		s.Passed++
	case "fail":
		s.Failed++
		u.failedTests[e.Package] = true
		fmt.Fprintf(w, "FAIL %s %s\n%s", e.Package, e.Test, text)
	case "skip":
		s.Skipped = append(s.Skipped, skip{Name: e.Package + "." + e.Test, Reason: reason(text)})
	}
}

func (s *summary) endPackage(e event, u unfinished, text string, w io.Writer) {
	for _, test := range slices.Clone(u.tests[e.Package]) {
		fmt.Fprintf(w, "%s of %s began and did not end\n", test, e.Package)
		s.end(event{Action: "fail", Package: e.Package, Test: test}, u, w)
	}
	delete(u.tests, e.Package)
	if e.Action != "skip" { // A package without tests says "skip".
		fmt.Fprintf(w, "%-4s %s (%.1fs)%s\n", e.Action, e.Package, e.Elapsed, e.Output)
	}
	if e.Action == "fail" {
		fmt.Fprint(w, text)
		if !u.failedTests[e.Package] {
			s.Failed++ // It did not build, or died outside a test.
		}
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
