package main

import (
	"bytes"
	"fmt"
	"slices"
	"testing"

	"github.com/kubeveil/kubeveil/internal/errtest"
)

// TestRiddles has phrases that each rule finds, and phrases beside them that it leaves alone.
func TestRiddles(t *testing.T) {
	for name, tt := range map[string]struct {
		rule          rule
		found, passed []string
	}{
		"noun repeated": {ruleThatOf,
			[]string{
				"Error is that of the last try.", "others are those of them that run",
				"The limit was that\n// of the kernel.", "arguments are only those of a verb",
			},
			[]string{
				"Error is the error of the last failed attempt.", "more than that of the peer",
				"is that offset", "is that the kernel has it",
			}},
		"meaning of nil": {ruleNilIs,
			[]string{
				"a limit; nil is none", "0 is nothing", "empty is all of them", `"" is none`,
				"zero is never", "A name; empty is\n// no name.",
			},
			[]string{
				"nil means no limit", "0 disables it", "10 is none of them", "nil is not allowed",
			}},
		"possessive without a noun": {rulePossessive,
			[]string{
				"groups are the plan's.", "groups are the plan's of which chains were made",
				"a source that is not the pods', by name", "It is the node's",
				"Name is the node's and",
			},
			[]string{
				"groups are the plan's groups", "It is the node's own\n// address.",
				"It is the node's\n// address.", "the plan's groups are kept",
			}},
		"is not a": {ruleIsNo,
			[]string{
				"A missing object is no error.", "which are no peers",
				"It would be\n// no\n// service.",
			},
			[]string{
				"is not an error", "there is no route", "There are no routes", "it is no longer up",
				"it is no\n// more", "it has no route", "is node-1",
			}},
		"subject named": {ruleWhatever,
			[]string{"whatever it does", "Whoever asks", "whatsoever"},
			[]string{"regardless of", "whenever", "the caller that asks"}},
	} {
		t.Run(name, func(t *testing.T) {
			for _, text := range slices.Concat(tt.found, tt.passed) {
				var all tally
				all.checkSentences("pkg/kube/a.go", 1, "// "+text)
				got := slices.ContainsFunc(all.findings,
					func(f finding) bool { return f.rule == tt.rule })
				if want := slices.Contains(tt.found, text); got != want {
					t.Errorf("%q: found is %t: %v", text, got, all.findings)
				}
			}
		})
	}
}

func TestSentencesAreReadWhereTheyStand(t *testing.T) {
	const code = `package p

// F returns x.
//
// The error is that
// of the last try.
func F() int { return 1 } // 0 is none

var err = errors.New("it is no\nservice " + "x")
var raw = ` + "`line one\nx, nil is none`" + `
var key = "is-no-space"
`
	const test = `package p

func TestEmptyIsNone(t *testing.T) {
	t.Run("what is no service", nil)
	_ = map[string]int{"it is no pod": 1}
	_ = []c{{name: "it is no node"}}
	t.Error("it is no message of a program")
}
`
	for name, tt := range map[string]struct {
		file, src string
		want      []string // line and rule
	}{
		"code": {"pkg/kube/a.go", code,
			[]string{"5 that-of", "7 nil-is", "9 is-no", "11 nil-is"}},
		"tests": {"pkg/kube/a_test.go", test,
			[]string{"3 nil-is", "4 is-no", "5 is-no", "6 is-no"}},
		"C": {"bpf/lib/a.h", "/* x is\n * that of y. */\nint a; // 0 is none\n",
			[]string{"1 that-of", "3 nil-is"}},
		"documents": {"docs/services.md",
			"# A\n\n| a | whatever |\n|---|---|\n\nIt is\nno service.\n",
			[]string{"3 whatever", "6 is-no"}},
		"manifests": {"manifests/cni/a.yaml", "# The name is\n# that of the node.\nkind: X\n",
			[]string{"1 that-of"}},
		"dated results": {"e2e/results/a.md", "It is no service.\n", nil},
	} {
		t.Run(name, func(t *testing.T) {
			var all tally
			errtest.Must(t, all.check(tt.file, []byte(tt.src)))
			var got []string
			for _, f := range all.findings {
				got = append(got, fmt.Sprintf("%d %s", f.line, f.rule))
			}
			slices.Sort(got)
			slices.Sort(tt.want)
			if !slices.Equal(got, tt.want) {
				t.Errorf("found %q, want %q", got, tt.want)
			}
		})
	}
}

func TestVerbsForPeopleAreListedAndPass(t *testing.T) {
	var all tally
	all.checkSentences("pkg/a.go", 1, "// F adds x.\n// The kernel tells it.")
	if len(all.findings) != 0 || len(all.reviewed) != 1 {
		t.Fatalf("findings %v, reviewed %v", all.findings, all.reviewed)
	}
	if got := all.reviewed[0]; got.line != 2 || got.message != "The kernel tells it." {
		t.Errorf("reviewed %+v", got)
	}
}

func TestCeilingsOfSentencesAreByRoom(t *testing.T) {
	for file, want := range map[string]string{
		"README.md":                ".",
		"docs/services.md":         "docs",
		"docs/how-to/uninstall.md": "docs/how-to",
		"pkg/policy/keeper/a.go":   "pkg/policy",
		"cmd/veilctl/internal/a.c": "cmd/veilctl",
	} {
		if got := room(file); got != want {
			t.Errorf("%s: room %q, want %q", file, got, want)
		}
	}

	limits, err := parseCeilings("pkg/kube is-no 1\npkg is-no 9\n")
	errtest.Must(t, err)
	for file, want := range map[string]bool{"pkg/kube/wire/a.go": true, "pkg/nl/a.go": false} {
		var all tally
		all.add(file, 1, ruleIsNo, "is no")
		if held := all.report(&bytes.Buffer{}, limits, false); held != want {
			t.Errorf("%s: held is %t", file, held)
		}
	}
}

func TestLowerOnlyLowers(t *testing.T) {
	var all tally
	for range 3 {
		all.add("pkg/kube/a.go", 1, ruleIsNo, "is no")
		all.add("pkg/kube/a.go", 1, ruleWords, "whom")
	}
	got, err := all.lower("# a comment\npkg words 2\npkg/kube is-no 5\npkg/kube nil-is 4\n")
	errtest.Must(t, err)
	if want := "# a comment\npkg words 2\npkg/kube is-no 3\n"; got != want {
		t.Errorf("lowered to %q, want %q", got, want)
	}
}
