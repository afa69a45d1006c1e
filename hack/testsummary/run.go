package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// event is one line of test2json(1), or with Action "exit" the status of a `go test`, which
// hack/test.sh appends.
type event struct {
	Action, Package, Test, Output string
	Elapsed                       float64
	Status                        int
}

// run holds what is known about a run of tests.
type run struct {
	summary
	w io.Writer
	// output is by package and test. The output of a test is dropped at its end.
	output map[string]*strings.Builder
	// began are the tests without an end, by package; a package that began is in it without any.
	began map[string][]string
	// failures counts failed tests by package and test without subtests; a package that failed
	// outside its tests has the test "".
	failures map[string]map[string]int
	// final are packages of which no test is run again.
	final map[string]bool
	// seconds holds the durations of tests, by name.
	seconds map[string]float64
	// failedPackages counts packages that failed since the last event "exit".
	failedPackages int
}

func newRun(w io.Writer) *run {
	return &run{summary: summary{Skipped: []skip{}, Flaky: []flaky{}}, w: w,
		output: map[string]*strings.Builder{}, began: map[string][]string{},
		failures: map[string]map[string]int{}, final: map[string]bool{},
		seconds: map[string]float64{}}
}

// read reads events until r ends, and prints as they come.
func (t *run) read(r io.Reader) error {
	in := bufio.NewReaderSize(r, 1<<20)
	for {
		line, err := in.ReadString('\n')
		if line != "" {
			var e event
			if json.Unmarshal([]byte(line), &e) != nil {
				fmt.Fprint(t.w, line) // The compiler speaks plainly.
			} else {
				t.add(e)
			}
		}

		if err == io.EOF {
			t.endAll("it began and did not end")
			return nil
		}
		if err != nil {
			return fmt.Errorf("read events: %w", err)
		}
	}
}

// endAll ends tests without an end as failed.
func (t *run) endAll(why string) {
	for _, p := range slices.Sorted(maps.Keys(t.began)) {
		t.end(event{Action: "fail", Package: p, Output: ": " + why})
	}
}

func (t *run) add(e event) {
	key := e.Package + " " + e.Test
	switch e.Action {
	case "build-output":
		fmt.Fprint(t.w, e.Output)
	case "start":
		t.began[e.Package] = nil
	case "run":
		t.began[e.Package] = append(t.began[e.Package], e.Test)
	case "output":
		if t.output[key] == nil {
			t.output[key] = &strings.Builder{}
		}
		t.output[key].WriteString(e.Output)
		t.final[e.Package] = t.final[e.Package] || final.MatchString(e.Output)
	case "pass", "skip", "fail":
		t.end(e)
	case "exit":
		t.exit(e.Status)
	}

	took := e.Elapsed - waited(e.Output)
	if took != 0 && e.Test != "" && !strings.Contains(e.Test, "/") {
		t.seconds[e.Package+"."+e.Test] += took
	}
}

// exit counts the end of a go test: status 1 has to be explained by a package that failed.
func (t *run) exit(status int) {
	t.endAll(fmt.Sprintf("it began, and go test ended with status %d", status))
	if status > 1 || status == 1 && t.failedPackages == 0 {
		fmt.Fprintf(t.w, "FAIL go test ended with status %d\n", status)
		t.Failed++
	}
	t.failedPackages = 0
}

// end counts the end of a test or of a package; with a package its tests end, and those that have
// not are failures.
func (t *run) end(e event) {
	key := e.Package + " " + e.Test
	text := ""
	if t.output[key] != nil {
		text = t.output[key].String()
		delete(t.output, key)
	}
	if e.Test == "" {
		t.endPackage(e, text)
		return
	}

	if tests, ok := t.began[e.Package]; ok {
		t.began[e.Package] = slices.DeleteFunc(tests, func(n string) bool { return n == e.Test })
	}
	switch e.Action {
	case "pass":
		t.Passed++
	case "fail":
		t.fail(e.Package, e.Test)
		fmt.Fprintf(t.w, "FAIL %s %s\n%s", e.Package, e.Test, text)
	case "skip":
		t.Skipped = append(t.Skipped, skip{Name: e.Package + "." + e.Test, Reason: reason(text)})
	}
}

func (t *run) endPackage(e event, text string) {
	for _, test := range slices.Clone(t.began[e.Package]) {
		fmt.Fprintf(t.w, "%s of %s began and did not end\n", test, e.Package)
		t.final[e.Package] = true // The process died, or go test ended it.
		t.end(event{Action: "fail", Package: e.Package, Test: test})
	}
	delete(t.began, e.Package)
	if e.Action != "skip" { // A package without tests says "skip".
		fmt.Fprintf(t.w, "%-4s %s (%.1fs)%s\n", e.Action, e.Package, e.Elapsed, e.Output)
	}
	if e.Action == "fail" {
		t.failedPackages++
		fmt.Fprint(t.w, text)
		if len(t.failures[e.Package]) == 0 {
			t.fail(e.Package, "") // It did not build, left something behind, or died between tests.
		}
	}
}

func (t *run) fail(pkg, test string) {
	top, _, _ := strings.Cut(test, "/")
	if t.failures[pkg] == nil {
		t.failures[pkg] = map[string]int{}
	}
	t.failures[pkg][top]++
	t.Failed++
}

// waitedLine matches the line of a test that waited for other labs, see e2e/node/nodetest.
var waitedLine = regexp.MustCompile(`: waited (\d+\.\d) s for other labs\n$`)

// waited returns the seconds of waiting in a line of a test's output, or 0.
func waited(output string) float64 {
	m := waitedLine.FindStringSubmatch(output)
	if m == nil {
		return 0
	}
	seconds, _ := strconv.ParseFloat(m[1], 64) // the expression has a number alone
	return seconds
}

// slow is the number of slowest tests that are named.
const slow = 10

// slowest prints which tests took longest.
func (t *run) slowest() {
	names := slices.SortedFunc(maps.Keys(t.seconds),
		func(a, b string) int { return cmp.Compare(t.seconds[b], t.seconds[a]) })
	for _, name := range names[:min(slow, len(names))] {
		fmt.Fprintf(t.w, "%6.1f s %s\n", t.seconds[name], name)
	}
}

// reason returns the reason for which a test skipped, on one line.
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
