package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/pkg/leak"
)

// failing returns events of a package in which each test of names fails with output.
func failing(pkg, output string, names ...string) string {
	var events strings.Builder
	fmt.Fprintf(&events, `{"Action":"start","Package":%q}`+"\n", pkg)
	for _, n := range names {
		fmt.Fprintf(&events, `{"Action":"run","Package":%q,"Test":%q}
{"Action":"output","Package":%[1]q,"Test":%[2]q,"Output":%[3]q}
{"Action":"fail","Package":%[1]q,"Test":%[2]q}
`, pkg, n, output)
	}
	fmt.Fprintf(&events, `{"Action":"fail","Package":%q}`+"\n", pkg)
	return events.String()
}

const exitOne = `{"Action":"exit","Status":1}` + "\n"

func TestFailedTestsAreRunAgain(t *testing.T) {
	passing := `{"Action":"pass","Package":"p","Test":"TestA"}` + "\n"
	for _, tt := range []struct {
		name   string
		first  string
		second string // what a second run prints; empty: it cannot be run
		again  int    // how many are run again
		failed int
		fine   bool
		output string
	}{
		{"it passes alone", failing("p", "", "TestA"), passing, 1, 0, true,
			"flaky p.TestA: it failed, and passed alone (new"},
		{"it is known", failing("p", "", "TestKnown"), passing, 1, 0, true,
			"flaky p.TestKnown: it failed, and passed alone (known)"},
		{"with its subtests", failing("p", "", "TestA/one", "TestA"), passing, 1, 0, true,
			"3 passed, 0 failed"},
		{"it fails twice", failing("p", "", "TestA"), failing("p", "", "TestA"), 1, 1, false,
			"p.TestA failed twice"},
		{"the second run has no test", failing("p", "", "TestA"), exitOne, 1, 1, false,
			"p.TestA failed twice"},
		{"the second run does not start", failing("p", "", "TestA"), "", 1, 1, false,
			"no such file"},
		{"two that are new", failing("p", "", "TestA", "TestB"), passing, 2, 0, true,
			"flaky p.TestB"},
		{"three that are new", failing("p", "", "TestA", "TestB", "TestC"), passing, 3, 0, false,
			"3 flaky tests are new"},
		{"five and a subtest", failing("p", "", "TestA", "TestB", "TestC", "TestD", "TestE/x",
			"TestE"), passing, 5, 0, false, "5 flaky tests are new"},
		{"six", failing("p", "", "TestA", "TestB", "TestC") +
			failing("q", "", "TestA", "TestB", "TestC"), passing, 0, 6, false, "6 tests failed"},
		{"a race", failing("p", "WARNING: DATA RACE\n", "TestA", "TestB"), passing, 0, 2, false,
			""},
		{"a frame in clear", failing("p", "    lab.go:71: "+clearFrame()+"\n", "TestA"), passing, 0,
			1, false, ""},
		{"a packet in clear", failing("p", "    a_test.go:7: the segment left in clear\n", "TestA"),
			passing, 0, 1, false, ""},
		{"a panic", failing("p", "panic: no", "TestA"), passing, 0, 1, false, ""},
		{"a leak", `{"Action":"start","Package":"p"}
{"Action":"pass","Package":"p","Test":"TestA"}
{"Action":"output","Package":"p","Output":"the tests left behind:\n"}
{"Action":"fail","Package":"p"}
`, passing, 0, 1, false, ""},
		{"a process that died", `{"Action":"start","Package":"p"}
{"Action":"run","Package":"p","Test":"TestA"}
{"Action":"fail","Package":"p"}
`, passing, 0, 1, false, "began and did not end"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var out strings.Builder
			r := newRun(&out)
			before := `{"Action":"pass","Package":"p","Test":"TestBefore"}` + "\n"
			errtest.Must(t, r.read(strings.NewReader(before+tt.first+exitOne)))

			again := 0
			known := map[string]bool{"p.TestKnown": true}
			r.runAgain(known, func(string, string) (io.Reader, error) {
				again++
				if tt.second == "" {
					return nil, errors.New("no such file")
				}
				return strings.NewReader(tt.second), nil
			})
			r.printFlaky()
			fmt.Fprintf(&out, "%d passed, %d failed", r.Passed, r.Failed)
			if again != tt.again || r.Failed != tt.failed || r.fine() != tt.fine {
				t.Errorf("%d run again, %d failed, fine %t; want %d, %d, %t:\n%s", again, r.Failed,
					r.fine(), tt.again, tt.failed, tt.fine, out.String())
			}
			if !strings.Contains(out.String(), tt.output) {
				t.Errorf("want %q in\n%s", tt.output, out.String())
			}
		})
	}
}

// clearFrame returns the message of the leak oracle about a frame in clear.
func clearFrame() string {
	r := leak.Result{Frames: 2, Plaintext: 1, Kinds: map[leak.Kind]uint64{"pod in clear": 1}}
	return r.Err().Error()
}

// TestListOfFlakyTests checks that flaky.txt can be parsed and that its tests exist.
func TestListOfFlakyTests(t *testing.T) {
	known, err := parseKnown(knownText)
	errtest.Must(t, err)
	for name := range known {
		i := strings.LastIndex(name, ".")
		dir := strings.TrimPrefix(name[:i], "github.com/kubeveil/kubeveil/")
		files, err := filepath.Glob(filepath.Join("../..", dir, "*_test.go"))
		errtest.Must(t, err)
		found := false
		for _, f := range files {
			text, err := os.ReadFile(f)
			errtest.Must(t, err)
			found = found || strings.Contains(string(text), "\nfunc "+name[i+1:]+"(")
		}
		if !found {
			t.Errorf("flaky.txt lists %s, which does not exist: delete the line", name)
		}
	}
}

func TestBadListsOfFlakyTests(t *testing.T) {
	eleven := ""
	for i := range maxKnown + 1 {
		eleven += fmt.Sprintf("2026-11-28 p.Test%d it waits too short\n", i)
	}
	for text, want := range map[string]string{
		"2026-11-28 p.TestA":          "write DATE PACKAGE.TEST CAUSE",
		"yesterday p.TestA slow":      "is not a date",
		eleven:                        "at most 10 may be flaky",
		"# a comment\n\n2026-11-28 x": "line 3",
	} {
		if _, err := parseKnown(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}
