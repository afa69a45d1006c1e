package main

import (
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"
)

// index lists the design notes.
const index = designs + "README.md"

var (
	noteName = regexp.MustCompile(`^docs/design/\d{4}-[\w-]+\.md$`)
	// A note names its status in a sentence: "Status: decided."
	noteStatus = regexp.MustCompile(`\bStatus: (\w+)`)
	// A row of the index: | [0001](0001-data-path.md) | decided | What it decides |
	indexRow = regexp.MustCompile(`(?m)^\| \[\d{4}\]\(([\w.-]+)\) \| (\w+) \| [^|\n]{10,} \|$`)
	statuses = []string{"proposed", "decided", "built", "superseded"}
)

// parts are the beginnings of headings. A design note must have a heading for each.
var parts = []string{"Context", "Decision", "Rejected", "How we would notice"}

func (c *checker) note(p *page) {
	if p.words > maxNote {
		c.say(p.path, 1, "%d words, at most %d: cut, or split the note", p.words, maxNote)
	}
	for _, part := range parts {
		begins := func(heading string) bool { return strings.HasPrefix(heading, part) }
		if !slices.ContainsFunc(p.headings, begins) {
			c.say(p.path, 1, "no heading %q: a note has %s", "## "+part, strings.Join(parts, ", "))
		}
	}
}

// notes checks that each design note has a status, and a row with that status in the index, whose
// rows are in the order of their numbers.
func (c *checker) notes() {
	listed := map[string]string{} // statuses in the index, by file
	last := ""
	for _, row := range indexRow.FindAllStringSubmatch(c.tree.documents[index], -1) {
		listed[path.Join(designs, row[1])] = row[2]
		if row[1] < last {
			c.say(index, 1, "%.4s is below %.4s: sort the rows by number", row[1], last)
		}
		last = row[1]
	}

	for _, name := range slices.Sorted(maps.Keys(c.pages)) {
		if !noteName.MatchString(name) {
			continue
		}
		status := ""
		if m := noteStatus.FindStringSubmatch(c.tree.documents[name]); m != nil {
			status = m[1]
		}
		switch {
		case !slices.Contains(statuses, status):
			c.say(name, 1, "its status is %q: write a sentence such as \"Status: decided.\" with "+
				"one of %s", status, strings.Join(statuses, ", "))
		case listed[name] == "":
			c.say(index, 1, "no row for %s: add | [%.4s](%s) | %s | what it decides |", name,
				path.Base(name), path.Base(name), status)
		case listed[name] != status:
			c.say(index, 1, "%s is %s here, and says of itself that it is %s: make them equal",
				path.Base(name), listed[name], status)
		}
	}
}
