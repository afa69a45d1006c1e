package main

import (
	"fmt"
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"
)

// page is a Markdown document, parsed as far as the checks need it.
type page struct {
	path     string // from the root of the tree, with slashes
	lines    []line
	anchors  map[string]bool
	headings []string
	words    int
	sentence []sentence
}

// line is a line of a page and its kind.
type line struct {
	number int
	text   string
	code   bool   // inside a fence or indented as code
	fence  string // language of the fence
	table  bool
}

// sentence is a sentence in prose or in a cell of a table.
type sentence struct {
	number int // of the line on which it begins
	words  int
	text   string
}

var (
	headingMark = regexp.MustCompile(`^#{1,6} `)
	listMark    = regexp.MustCompile(`^\s*(?:[-*] |\d+\. )`)
	inlineLink  = regexp.MustCompile(`!?\[([^\]]*)\]\(([^)\s]*)\)`)
	inlineCode  = regexp.MustCompile("`[^`]+`")
	slugDrop    = regexp.MustCompile(`[^\p{L}\p{N}\- _]`)
	// A sentence ends at a full stop, an exclamation mark or a question mark before a space. A
	// semicolon or a colon does not end a sentence.
	sentenceEnd = regexp.MustCompile(`[.!?]["')*_]*(?:\s+|$)`)
	shortForm   = regexp.MustCompile(`(?:\b(?:e\.g|i\.e|cf|vs|No)|\.\.|…)\.?$`)
)

// parse reads the text of the page at path.
func parse(path, text string) *page {
	p := &page{path: path, anchors: map[string]bool{}}
	fence, language := "", ""
	for i, s := range strings.Split(strings.TrimSuffix(text, "\n"), "\n") {
		l := line{number: i + 1, text: s}
		trimmed := strings.TrimSpace(s)
		switch {
		case fence != "":
			l.code, l.fence = true, language
			if strings.HasPrefix(trimmed, fence) {
				fence = ""
			}
		case strings.HasPrefix(trimmed, "```"):
			l.code, fence, language = true, "```", strings.TrimPrefix(trimmed, "```")
		case strings.HasPrefix(s, "    ") && !listMark.MatchString(s) && p.afterBlank():
			l.code = true
		case strings.HasPrefix(trimmed, "|"):
			l.table = true
		case headingMark.MatchString(s):
			p.anchor(s)
		}
		p.lines = append(p.lines, l)
	}
	p.split()
	return p
}

// afterBlank reports whether the last line is blank or code. An indented line after such a line is
// code.
func (p *page) afterBlank() bool {
	if len(p.lines) == 0 {
		return true
	}
	last := p.lines[len(p.lines)-1]
	return last.code || strings.TrimSpace(last.text) == ""
}

// anchor adds the anchor that GitHub makes for a heading.
func (p *page) anchor(heading string) {
	text := strings.TrimSpace(strings.TrimLeft(heading, "#"))
	text = inlineLink.ReplaceAllString(text, "$1")
	slug := strings.ReplaceAll(slugDrop.ReplaceAllString(strings.ToLower(text), ""), " ", "-")
	name := slug
	for n := 1; p.anchors[name]; n++ {
		name = fmt.Sprintf("%s-%d", slug, n)
	}
	p.anchors[name] = true
	p.headings = append(p.headings, text)
}

// split adds the sentences of all paragraphs, list items and table cells.
func (p *page) split() {
	var text strings.Builder
	start := 0
	flush := func() {
		p.sentences(start, text.String())
		text.Reset()
	}

	for _, l := range p.lines {
		trimmed := strings.TrimLeft(strings.TrimSpace(l.text), "> ")
		switch {
		case l.code || trimmed == "":
			flush()
			continue
		case l.table:
			flush()
			for cell := range strings.SplitSeq(strings.ReplaceAll(trimmed, `\|`, "¦"), "|") {
				for part := range strings.SplitSeq(cell, ";") {
					p.sentences(l.number, part)
				}
			}
			continue
		case headingMark.MatchString(l.text):
			flush()
			continue
		case listMark.MatchString(trimmed + " "):
			flush()
			trimmed = listMark.ReplaceAllString(trimmed, "")
		}

		if text.Len() == 0 {
			start = l.number
		}
		text.WriteString(trimmed + "\n")
	}
	flush()
}

// sentences adds the sentences of a text that begins at a line.
func (p *page) sentences(number int, text string) {
	text = inlineLink.ReplaceAllString(text, "$1")
	text = hideCode(text)

	for text != "" {
		end := len(text)
		for from := 0; from < len(text); {
			at := sentenceEnd.FindStringIndex(text[from:])
			if at == nil {
				break
			}
			if !shortForm.MatchString(text[:from+at[0]]) {
				end = from + at[1]
				break
			}
			from += at[1]
		}
		s := text[:end]
		text = text[end:]

		lead := s[:len(s)-len(strings.TrimLeft(s, " \n"))]
		begin := number + strings.Count(lead, "\n")
		number += strings.Count(s, "\n")
		if n := countWords(s); n > 0 {
			p.words += n
			flat := strings.Join(strings.Fields(s), " ")
			p.sentence = append(p.sentence, sentence{begin, n, flat})
		}
	}
}

// countWords returns the number of words in s. A word has a letter or a digit.
func countWords(s string) int {
	counts := func(r rune) bool { return unicode.IsLetter(r) || unicode.IsDigit(r) }
	n := 0
	for w := range strings.FieldsSeq(s) {
		if strings.ContainsFunc(w, counts) {
			n++
		}
	}
	return n
}

// block is a group of consecutive lines of text, in which a link or a code span may span lines.
type block struct {
	number int // of the first line
	text   string
}

// blocks returns the blocks of the page, without lines of code.
func (p *page) blocks() []block {
	var all []block
	open := false
	for _, l := range p.lines {
		switch {
		case l.code || strings.TrimSpace(l.text) == "":
			open = false
		case open:
			all[len(all)-1].text += "\n" + l.text
		default:
			all, open = append(all, block{l.number, l.text}), true
		}
	}
	return all
}

// line returns the line number of the offset at in b.text.
func (b block) line(at int) int { return b.number + strings.Count(b.text[:at], "\n") }

// hideCode replaces each inline code span by a word. Line breaks stay.
func hideCode(text string) string {
	return inlineCode.ReplaceAllStringFunc(text, func(s string) string {
		return "code" + strings.Repeat("\n", strings.Count(s, "\n"))
	})
}

// columns returns the width of a line.
func (l line) columns() int { return utf8.RuneCountInString(l.text) }
