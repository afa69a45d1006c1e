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

// event is one line of the output of test2json(1). With Action "exit", which hack/test.sh appends,
// it has the exit status of a `go test`.
type event struct {
	Action, Package, Test, Output string
	Elapsed                       float64
	Status                        int
}

// run holds the state of a summary while events are read.
type run struct {
	summary
	w io.Writer
	// output is the output of each package and of each test that has not ended, by "PACKAGE TEST".
	output map[string]*strings.Builder
	// began holds the tests that began and have not ended, for each package that has not ended.
	began map[string][]string
	// failures counts the failed tests, subtests included, by package and top-level test. If a
	// package failed outside its tests, the test is "".
	failures map[string]map[string]int
	// final has the packages whose tests are not run again.
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

// read reads events until r ends. It prints results as soon as they are known.
func (t *run) read(r io.Reader) error {
	in := bufio.NewReaderSize(r, 1<<20)
	for {
		line, err := in.ReadString('\n')
		if line != "" {
			var e event
			if json.Unmarshal([]byte(line), &e) != nil {
				fmt.Fprint(t.w, line) // a message of the compiler is not JSON
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

// endAll records the packages that have not ended, and their tests, as failed.
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

// exit handles the exit status of a go test. Status 1 without a failed package, and any higher
// status, count as a failure.
func (t *run) exit(status int) {
	t.endAll(fmt.Sprintf("it began, and go test ended with status %d", status))
	if status > 1 || status == 1 && t.failedPackages == 0 {
		fmt.Fprintf(t.w, "FAIL go test ended with status %d\n", status)
		t.Failed++
	}
	t.failedPackages = 0
}

// end handles the end of a test or of a package. Tests of a package that have not ended then count
// as failed.
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
		t.final[e.Package] = true // the process died, or go test killed it
		t.end(event{Action: "fail", Package: e.Package, Test: test})
	}
	delete(t.began, e.Package)
	if e.Action != "skip" { // the result of a package without tests is "skip"
		fmt.Fprintf(t.w, "%-4s %s (%.1fs)%s\n", e.Action, e.Package, e.Elapsed, e.Output)
	}
	if e.Action == "fail" {
		t.failedPackages++
		fmt.Fprint(t.w, text)
		if len(t.failures[e.Package]) == 0 {
			t.fail(e.Package, "") // it did not build, leaked resources, or died between tests
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

// waited returns the number of seconds in a line that matches waitedLine, or 0 for other lines.
func waited(output string) float64 {
	m := waitedLine.FindStringSubmatch(output)
	if m == nil {
		return 0
	}
	seconds, _ := strconv.ParseFloat(m[1], 64) // the expression has a number alone
	return seconds
}

// slow is the number of tests that slowest prints.
const slow = 10

// slowest prints the tests that took longest.
func (t *run) slowest() {
	names := slices.SortedFunc(maps.Keys(t.seconds),
		func(a, b string) int { return cmp.Compare(t.seconds[b], t.seconds[a]) })
	for _, name := range names[:min(slow, len(names))] {
		fmt.Fprintf(t.w, "%6.1f s %s\n", t.seconds[name], name)
	}
}

// reason returns the reason for a skip from the output of the test, on one line.
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
