package main

import (
	"go/ast"
	"go/token"
	"path"
	"strconv"
	"strings"
)

// results are dated records, which stay as they are.
const results = "e2e/results/"

// checkText adds the findings of a file that is not code in Go or C. It reports whether the file is
// of such a kind.
func (t *tally) checkText(file string, lines []string) bool {
	switch {
	case strings.HasPrefix(file, results):
		return true
	case path.Ext(file) == ".md":
		t.checkProse(file, lines)
	case path.Ext(file) == ".yaml":
		t.checkWidth(file, lines)
		if strings.HasPrefix(file, "manifests/") {
			t.checkProse(file, lines)
		}
	case path.Ext(file) == ".sh", file == "Makefile", file == ".ci/run":
		t.checkWidth(file, lines)
	default:
		return false
	}
	return true
}

// checkWidth is checkColumns for files of which each long line counts.
func (t *tally) checkWidth(file string, lines []string) {
	for i, l := range lines {
		if n := width(l); n > columns {
			t.add(file, i+1, ruleWidth, "%d columns: break the line at %d (a tab is %d)", n, columns,
				tab)
		}
	}
}

func (t *tally) checkProse(file string, lines []string) {
	for i, l := range lines {
		t.checkWords(file, i+1, ruleProse, l)
	}
	t.checkSentences(file, 1, strings.Join(lines, "\n"))
}

// checkStrings adds the private words and the riddles of a program's texts: errors, logs and help.
// A string without a space is a name or a part of one.
func (t *tally) checkStrings(file string, fset *token.FileSet, f *ast.File) {
	if strings.HasSuffix(file, "_test.go") {
		return
	}
	ast.Inspect(f, func(n ast.Node) bool {
		lit, ok := n.(*ast.BasicLit)
		if !ok || lit.Kind != token.STRING {
			return true
		}
		text, err := strconv.Unquote(lit.Value)
		if err != nil || !strings.Contains(text, " ") {
			return true
		}

		raw := strings.HasPrefix(lit.Value, "`")
		whole := text
		if !raw {
			whole = spaces.ReplaceAllString(text, " ")
		}
		t.checkSentences(file, fset.Position(lit.Pos()).Line, whole)
		for i, l := range strings.Split(text, "\n") {
			line := fset.Position(lit.Pos()).Line
			if raw {
				line += i
			}
			t.checkWords(file, line, ruleProse, l)
		}
		return true
	})
}
