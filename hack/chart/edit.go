package chart

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/pmezard/go-difflib/difflib"
)

// edit replaces the lines from..to of an object by other lines of a template, if the condition when
// holds. An empty condition means always.
type edit struct {
	from, to int
	when     string
	lines    []string
}

// difference returns the edits that turn the lines of an object into other lines.
func difference(was, is []string, when string, escape func(string) string) (edits []edit) {
	for _, op := range difflib.NewMatcherWithJunk(was, is, false, nil).GetOpCodes() {
		if op.Tag == 'e' {
			continue
		}
		e := edit{from: op.I1, to: op.I2, when: when}
		for _, line := range is[op.J1:op.J2] {
			e.lines = append(e.lines, escape(line))
		}
		edits = append(edits, e)
	}
	return edits
}

// merge returns the lines of a template: the lines of an object with all edits. Edits that insert
// at the same place keep their order. Edits that overlap are an error.
func merge(lines []string, edits []edit, escape func(string) string) (out []string, err error) {
	slices.SortStableFunc(edits, func(a, b edit) int {
		// What is inserted before a line comes before what replaces the line.
		return cmp.Or(cmp.Compare(a.from, b.from),
			cmp.Compare(min(a.to-a.from, 1), min(b.to-b.from, 1)))
	})

	at := 0
	for _, e := range edits {
		if e.from < at {
			return nil, fmt.Errorf("two components change line %d, %q", e.from+1, lines[e.from])
		}
		for ; at < e.from; at++ {
			out = append(out, escape(lines[at]))
		}
		var kept []string
		for ; at < e.to; at++ {
			kept = append(kept, escape(lines[at]))
		}
		out = append(out, conditional(e.when, e.lines, kept)...)
	}
	for ; at < len(lines); at++ {
		out = append(out, escape(lines[at]))
	}
	return out, checkBlank(out)
}

// conditional returns the lines of a template that has one of two texts.
func conditional(when string, then, otherwise []string) []string {
	if when == "" {
		return then
	}
	if len(then) == 0 {
		when, then, otherwise = "not ("+when+")", otherwise, nil
	}
	out := append([]string{"{{- if " + when + " }}"}, then...)
	if len(otherwise) > 0 {
		out = append(append(out, "{{- else }}"), otherwise...)
	}
	return append(out, "{{- end }}")
}

// checkBlank returns an error if a blank line stands before an action that trims white space.
func checkBlank(lines []string) error {
	for i, line := range lines[1:] {
		if strings.HasPrefix(line, "{{-") && strings.TrimSpace(lines[i]) == "" {
			return fmt.Errorf("the blank line before %q would be lost", line)
		}
	}
	return nil
}
