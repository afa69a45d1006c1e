package main

import (
	"cmp"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"maps"
	"regexp"
	"slices"
	"strings"
)

const (
	// columns is the longest line, with a tab as four.
	columns = 100
	tab     = 4
	// share is how many lines of a thousand may be longer: raw strings and URLs do not break.
	share = 5
	// unread is the longest function body that needs no blank line.
	unread = 25
)

// rule names what a finding violates.
type rule string

const (
	ruleColumns rule = "columns"
	ruleVerbs   rule = "verbs"
	ruleWords   rule = "words"
	ruleSteps   rule = "steps"
)

// finding is one violation: where, and what to write instead.
type finding struct {
	file    string
	line    int
	rule    rule
	message string
}

// tally collects the findings of many files.
type tally struct {
	findings []finding
	lines    map[string]int // by folder
}

var (
	givesDoc   = regexp.MustCompile(`^//\s*[A-Za-z_][\w.]* gives\b`)
	whetherDoc = regexp.MustCompile(`^//\s*[A-Za-z_][\w.]* (is|are) whether\b`)
	generated  = regexp.MustCompile(`(?m)^// Code generated .* DO NOT EDIT\.$`)
)

// private are words that send the reader looking for a subject, and what to write instead.
var private = []struct {
	word    *regexp.Regexp
	instead string
}{
	{regexp.MustCompile(`(?i)\bnobody('s)?\b`), "name the subject: no process, no pod, no user"},
	{regexp.MustCompile(`(?i)\bwhoever\b`), "name the subject: the caller that, the process that"},
	{regexp.MustCompile(`(?i)\bsomebody('s)?\b`), "name the subject: another program, an administrator"},
	{regexp.MustCompile(`(?i)\b(any|every)body('s)?\b`), "name the subject: any process, every node"},
	{regexp.MustCompile(`(?i)\bwhom\b`), "name the object: the address that it saw"},
	{regexp.MustCompile(`(?i)\banew\b`), "again"},
	{regexp.MustCompile(`(?i)\bwhat (is|are) of\b`), "name the things: the routes of"},
	{regexp.MustCompile(`(?i)\b(that|those) of (whose|which)\b`), "name the thing that is meant"},
	{regexp.MustCompile(`(?i)\bin whose\b`), "name the owner first: X, whose Y holds"},
	{regexp.MustCompile(`(?i)\bsaid to be\b`), "say which program says so, or drop it"},
	{regexp.MustCompile(`(?i)\bgone for good\b`), "deleted; it will not return"},
	{regexp.MustCompile(`(?i)\bnone that is not\b`), "every one is"},
	{regexp.MustCompile(`(?i)\bwhat becomes of\b`), "the fate of; the verdict on"},
	{regexp.MustCompile(`(?i)\bwants of\b`), "needs from"},
	{regexp.MustCompile(`(?i)\bbe had\b`), "be read; be obtained"},
}

// privateName matches names of tests that hide their subject.
var privateName = regexp.MustCompile(`Nobody|Whoever|Somebody|Everybody`)

func folder(file string) string {
	top, _, _ := strings.Cut(file, "/")
	return top
}

// check adds the findings of one file; its name ends in .go, .c or .h.
func (t *tally) check(file string, src []byte) error {
	if generated.Match(src[:min(len(src), 4096)]) || strings.Contains(file, "/testdata/") ||
		strings.HasSuffix(file, "/vmlinux.h") {
		return nil
	}

	if t.lines == nil {
		t.lines = map[string]int{}
	}
	lines := strings.Split(strings.TrimSuffix(string(src), "\n"), "\n")
	t.lines[folder(file)] += len(lines)
	t.checkColumns(file, lines)
	if !strings.HasSuffix(file, ".go") {
		for i, l := range lines {
			t.checkWords(file, i+1, l)
		}
		return nil
	}

	fset := token.NewFileSet()
	f, err := parser.ParseFile(fset, file, src, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return err
	}
	for _, group := range f.Comments {
		t.checkVerbs(file, fset.Position(group.Pos()).Line, group.List[0].Text)
		for _, c := range group.List {
			for i, l := range strings.Split(c.Text, "\n") {
				t.checkWords(file, fset.Position(c.Pos()).Line+i, l)
			}
		}
	}

	for _, d := range f.Decls {
		if fn, ok := d.(*ast.FuncDecl); ok {
			t.checkFunc(file, fset, fn, lines)
		}
	}
	return nil
}

func (t *tally) add(file string, line int, r rule, format string, args ...any) {
	t.findings = append(t.findings, finding{file, line, r, fmt.Sprintf(format, args...)})
}

func (t *tally) checkColumns(file string, lines []string) {
	for i, l := range lines {
		n := len([]rune(l)) + (tab-1)*strings.Count(l, "\t")
		if n > columns && !strings.HasPrefix(l, "//go:") {
			t.add(file, i+1, ruleColumns, "%d columns: break the line at %d (a tab is %d)", n, columns,
				tab)
		}
	}
}

func (t *tally) checkVerbs(file string, line int, text string) {
	if givesDoc.MatchString(text) {
		t.add(file, line, ruleVerbs, `comment begins with "gives": write "returns", or what it does`)
	}
	if whetherDoc.MatchString(text) {
		t.add(file, line, ruleVerbs, `comment begins with "is whether": write "reports whether"`)
	}
}

func (t *tally) checkWords(file string, line int, text string) {
	for _, p := range private {
		if m := p.word.FindString(text); m != "" {
			t.add(file, line, ruleWords, "%q: write instead: %s", m, p.instead)
		}
	}
}

// checkFunc checks the name of a test and the body of any function.
func (t *tally) checkFunc(file string, fset *token.FileSet, fn *ast.FuncDecl, lines []string) {
	at := fset.Position(fn.Pos()).Line
	if m := privateName.FindString(fn.Name.Name); m != "" {
		t.add(file, at, ruleWords, "%s: name the subject instead of %q", fn.Name.Name, m)
	}
	if fn.Body == nil {
		return
	}

	from, to := fset.Position(fn.Body.Lbrace).Line, fset.Position(fn.Body.Rbrace).Line
	body := lines[from:max(from, to-1)]
	table := len(fn.Body.List) == 1 // a loop over situations, or one value
	if len(body) > unread && !table && !slices.ContainsFunc(body, blank) {
		t.add(file, at, ruleSteps, "%s has %d lines and no blank one: set its steps apart",
			fn.Name.Name, len(body))
	}
}

func blank(line string) bool { return strings.TrimSpace(line) == "" }

// ceiling is one line of ceilings.txt.
type ceiling struct {
	folder string
	rule   rule
}

// parseCeilings reads lines "folder rule number"; what begins with # is left out.
func parseCeilings(text string) (map[ceiling]int, error) {
	limits := map[ceiling]int{}
	for i, l := range strings.Split(text, "\n") {
		if strings.HasPrefix(l, "#") || blank(l) {
			continue
		}
		var c ceiling
		var n int
		if _, err := fmt.Sscanf(l, "%s %s %d", &c.folder, &c.rule, &n); err != nil {
			return nil, fmt.Errorf("ceilings.txt:%d: want folder, rule and number: %w", i+1, err)
		}
		limits[c] = n
	}
	return limits, nil
}

// report prints what is above a ceiling, and a count of the rest. It reports whether all hold.
func (t *tally) report(w io.Writer, limits map[ceiling]int, all bool) bool {
	for dir, n := range t.lines {
		c := ceiling{dir, ruleColumns}
		limits[c] = max(limits[c], n*share/1000)
	}

	found := map[ceiling][]finding{}
	for _, f := range t.findings {
		c := ceiling{folder(f.file), f.rule}
		found[c] = append(found[c], f)
	}
	held := true
	for _, c := range slices.SortedFunc(maps.Keys(found), func(a, b ceiling) int {
		return cmp.Or(cmp.Compare(a.folder, b.folder), cmp.Compare(a.rule, b.rule))
	}) {
		list, limit := found[c], limits[c]
		over := len(list) > limit
		held = held && !over
		if !over && !all {
			continue
		}
		fmt.Fprintf(w, "%s: rule %s: %d findings, at most %d\n", c.folder, c.rule, len(list), limit)
		for i, f := range list {
			if i == shown && !all {
				fmt.Fprintf(w, "  … and %d more: go run ./hack/wordcheck -all\n", len(list)-i)
				break
			}
			fmt.Fprintf(w, "  %s:%d: %s\n", f.file, f.line, f.message)
		}
	}
	return held
}
