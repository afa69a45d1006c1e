package main

import (
	"regexp"
	"strings"
)

var (
	testName = regexp.MustCompile(`\b(?:Test|Fuzz|Benchmark)[A-Z]\w*`)
	// A path of the tree begins with one of its folders, and is not the end of another path.
	treePath = regexp.MustCompile(`(?:^|[\s"'(=\x60,])(?:\./)?` +
		`((?:bpf|cmd|csi|docs|e2e|hack|internal|manifests|pkg|plugins)/[\w./…*{}<>,-]*)`)
	makeCall = regexp.MustCompile(`(?:^|&& |; |\$ )make((?: [a-z][a-z0-9-]*)+)`)
	// A document is directly in docs, or in one of these folders of docs. Other folders belong to
	// other projects.
	docName = regexp.MustCompile(`(?:^|[^\w/.-])` +
		`(docs/(?:(?:design|how-to|reference)/)?[\w.-]+\.md)`)
)

// shells are the languages of fenced blocks with shell commands.
var shells = map[string]bool{"sh": true, "bash": true, "console": true, "": true}

// names checks that paths, tests and Make targets in code exist.
func (c *checker) names(p *page) {
	if strings.Contains(c.tree.documents[p.path], "DO NOT EDIT") {
		return // the page is generated from code
	}
	for _, l := range p.lines {
		if l.code && shells[l.fence] {
			c.code(p.path, l.number, l.text)
		}
	}
	for _, b := range p.blocks() {
		for _, at := range inlineCode.FindAllStringIndex(b.text, -1) {
			code := strings.Join(strings.Fields(b.text[at[0]:at[1]]), " ")
			c.code(p.path, b.line(at[0]), strings.Trim(code, "`"))
		}
	}
}

func (c *checker) code(file string, line int, text string) {
	for _, name := range testName.FindAllString(text, -1) {
		begins := strings.Contains(text, name+"*") || strings.Contains(text, name+"…")
		if !c.tree.hasTest(name, begins) {
			c.say(file, line, "there is no test %s%s", name, c.tree.insteadTest(name))
		}
	}
	for _, m := range treePath.FindAllStringSubmatch(text, -1) {
		name := strings.TrimRight(m[1], ".,/")
		if !strings.ContainsAny(name, "…*{}<>") && !c.tree.has(name) {
			c.say(file, line, "there is no %s%s", name, c.tree.instead(name))
		}
	}
	for _, m := range makeCall.FindAllStringSubmatch(text, -1) {
		for target := range strings.FieldsSeq(m[1]) {
			if !c.tree.targets[target] {
				c.say(file, line, "the Makefile has no target %s", target)
			}
		}
	}
}

// mentions checks that the documents that code names exist.
func (c *checker) mentions() {
	for _, m := range c.tree.mentions {
		if !c.tree.has(m.document) {
			c.say(m.file, m.line, "there is no %s%s", m.document, c.tree.instead(m.document))
		}
	}
}
