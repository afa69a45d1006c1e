package main

import (
	"go/ast"
	"go/token"
	"path"
	"regexp"
	"strconv"
	"strings"
)

// The rules for sentences. Their ceilings are by room: see room.
const (
	ruleThatOf     rule = "that-of"
	ruleNilIs      rule = "nil-is"
	rulePossessive rule = "possessive"
	ruleIsNo       rule = "is-no"
	ruleWhatever   rule = "whatever"
)

// riddle is a phrase that a reader has to solve, and what to write instead.
type riddle struct {
	rule    rule
	phrase  *regexp.Regexp
	unless  *regexp.Regexp // leaves out matches of phrase; nil leaves out none
	instead string
}

// beings are the forms of "to be" that riddles hang on.
const beings = `\b(?:is|are|was|were|be)\s+`

var riddles = []riddle{
	{
		rule: ruleThatOf,
		phrase: regexp.MustCompile(`(?i)` + beings +
			`(?:(?:also|always|then|only|not|still|never|again|now|at most|at least)\s+)?` +
			`(?:that|those)\s+of\b`),
		instead: "repeat the noun: the error of the last attempt",
	},
	{
		rule: ruleNilIs,
		phrase: regexp.MustCompile(`(?i)(?:\b(?:nil|0|zero|empty|none|false)|"")\s+(?:is|are)\s+` +
			`(?:none|nothing|nobody|no|any|anything|all|each|every\w*|never|always)\b`),
		instead: "say what the value means: nil means no limit",
	},
	{
		rule: rulePossessive,
		phrase: regexp.MustCompile(`(?i)` + beings +
			`(?:(?:the|a|an|not|only|this|that|one|another|each|every|its|also|still)\s+)*` +
			`(?:[\w-]+\s+)?[\w-]+(?:'s|s')(?:\s+own)?(?:[.,;:)]|$|\s+(?:of|to|and|or|but|if|when|` +
			`that|which|whose|until|while|as|in|at|by|for|from|with|not|too|only|alone)\b)`),
		instead: "give the possessive its noun: the plan's groups",
	},
	{
		rule:    ruleIsNo,
		phrase:  regexp.MustCompile(`(?i)(?:\b\w+\s+)?` + beings + `no\b(?:\s+\w+)?`),
		unless:  regexp.MustCompile(`(?i)^(?:there|nil|0|zero|empty|none)\b|` + later),
		instead: `"is not a"; "does not count as"`,
	},
	{
		rule:    ruleWhatever,
		phrase:  regexp.MustCompile(`(?i)\b(?:what|who|whom)(?:so)?ever\b`),
		instead: "name the subject: the process that, regardless of",
	},
}

// later matches comparisons such as "no longer".
const later = `\bno\s+(?:longer|more|less|later|earlier|sooner|fewer|other)$`

// reviewed are verbs that fit people and API servers, but few programs. They have no ceiling.
var reviewed = regexp.MustCompile(`(?i)\b(?:tells?|told|asks?|asked|says?|said)\b`)

// marks matches the marks at the beginning of a line of a comment or a document.
var marks = regexp.MustCompile(`(?m)^[ \t]*(?://|/\*+|\*+/?|#+|>)?[ \t]?`)

// capitals matches the words of a Go name; spaces matches the space between words.
var (
	capitals = regexp.MustCompile(`[A-Z]+[a-z0-9]*`)
	spaces   = regexp.MustCompile(`\s+`)
)

// room returns the folder whose ceiling counts a file's sentences: at most two elements of a path.
func room(file string) string {
	parts := strings.Split(path.Dir(file), "/")
	return path.Join(parts[:min(len(parts), 2)]...)
}

// ceiling returns which ceiling counts a finding.
func (f finding) ceiling() ceiling {
	switch f.rule {
	case ruleThatOf, ruleNilIs, rulePossessive, ruleIsNo, ruleWhatever:
		return ceiling{room(f.file), f.rule}
	}
	return ceiling{folder(f.file), f.rule}
}

// checkSentences adds the riddles of a text that begins in a line of file. A phrase may go on in
// the next line.
func (t *tally) checkSentences(file string, line int, text string) {
	text = marks.ReplaceAllString(text, "")
	at := func(offset int) int { return line + strings.Count(text[:offset], "\n") }

	for _, r := range riddles {
		for _, m := range r.phrase.FindAllStringIndex(text, -1) {
			found := spaces.ReplaceAllString(text[m[0]:m[1]], " ")
			if r.unless != nil && r.unless.MatchString(found) {
				continue
			}
			t.add(file, at(m[0]), r.rule, "%q: write instead: %s", found, r.instead)
		}
	}
	for _, m := range reviewed.FindAllStringIndex(text, -1) {
		from := strings.LastIndexByte(text[:m[0]], '\n') + 1
		sentence, _, _ := strings.Cut(text[from:], "\n")
		t.reviewed = append(t.reviewed, finding{file: file, line: at(m[0]), message: sentence})
	}
}

// checkComment adds the riddles of the lines of one comment.
func (t *tally) checkComment(file string, fset *token.FileSet, group *ast.CommentGroup) {
	var lines []string
	for _, c := range group.List {
		lines = append(lines, c.Text)
	}
	t.checkSentences(file, fset.Position(group.Pos()).Line, strings.Join(lines, "\n"))
}

// checkTestNames adds the riddles in the names of tests and of their cases. Names of cases are the
// first argument of Run, keys of tables, and fields called name.
func (t *tally) checkTestNames(file string, fset *token.FileSet, f *ast.File) {
	if !strings.HasSuffix(file, "_test.go") {
		return
	}
	literal := func(e ast.Expr) {
		if lit, ok := e.(*ast.BasicLit); ok && lit.Kind == token.STRING {
			name, _ := strconv.Unquote(lit.Value)
			t.checkSentences(file, fset.Position(lit.Pos()).Line, name)
		}
	}

	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncDecl:
			if name := n.Name.Name; strings.HasPrefix(name, "Test") {
				t.checkSentences(file, fset.Position(n.Pos()).Line,
					capitals.ReplaceAllString(name, " $0"))
			}
		case *ast.CallExpr:
			call, ok := n.Fun.(*ast.SelectorExpr)
			if ok && call.Sel.Name == "Run" && len(n.Args) > 0 {
				literal(n.Args[0])
			}
		case *ast.KeyValueExpr:
			literal(n.Key)
			if key, ok := n.Key.(*ast.Ident); ok && key.Name == "name" {
				literal(n.Value)
			}
		}
		return true
	})
}
