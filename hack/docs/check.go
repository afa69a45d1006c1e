package main

import (
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"
)

// Limits of the checks.
const (
	maxColumns = 100
	maxWords   = 25   // words of a sentence
	maxLong    = 0.05 // share of sentences with more than maxWords words
	maxNote    = 2000 // words of a design note
)

const (
	designs = "docs/design/"
	results = "e2e/results/"
)

// trees are the beginnings of paths. The share of long sentences is computed for each of them. A
// document belongs to the first that fits.
var trees = []string{designs, "docs/", "e2e/", ""}

// checker collects messages about errors.
type checker struct {
	tree     *tree
	pages    map[string]*page
	linked   map[string]bool // targets of links
	veilctl  flagsOf
	problems []string
}

// check returns the errors in the documents of t, one message per line.
func check(t *tree) []string {
	c := &checker{
		tree: t, pages: map[string]*page{}, linked: map[string]bool{},
		veilctl: readFlags(t.documents[reference]),
	}
	for name, text := range t.documents {
		c.pages[name] = parse(name, text)
	}

	for _, name := range slices.Sorted(maps.Keys(c.pages)) {
		p := c.pages[name]
		c.links(p)
		c.columns(p)
		if strings.HasPrefix(name, results) {
			continue
		}
		c.names(p)
		c.flags(p)
		c.history(p)
		c.commands(p)
		if noteName.MatchString(name) {
			c.note(p)
		}
	}
	c.notes()
	c.sentences()
	c.orphans()
	c.mentions()
	return c.problems
}

func (c *checker) say(file string, line int, format string, args ...any) {
	message := fmt.Sprintf(format, args...)
	c.problems = append(c.problems, fmt.Sprintf("%s:%d: %s", file, line, message))
}

var outside = regexp.MustCompile(`^(?:[a-z]+:|//)`)

// links checks that each relative link leads to a file, a folder or a heading.
func (c *checker) links(p *page) {
	for _, b := range p.blocks() {
		b.text = hideCode(b.text)
		for _, at := range inlineLink.FindAllStringSubmatchIndex(b.text, -1) {
			target := b.text[at[4]:at[5]]
			if target != "" && !outside.MatchString(target) {
				c.link(p, b.line(at[4]), target)
			}
		}
	}
}

func (c *checker) link(p *page, number int, target string) {
	file, anchor, _ := strings.Cut(target, "#")
	to := p.path
	if file != "" {
		to = path.Join(path.Dir(p.path), file)
	}
	if !c.tree.has(to) {
		c.say(p.path, number, "link to %s: there is no %s%s", target, to, c.tree.instead(to))
		return
	}
	c.linked[to] = true

	linked, ok := c.pages[to]
	if anchor != "" && ok && !linked.anchors[anchor] {
		like := closest(anchor, slices.Sorted(maps.Keys(linked.anchors)), 3)
		c.say(p.path, number, "link to %s: %s has no such heading; write one of #%s",
			target, to, strings.Join(like, ", #"))
	}
}

// columns checks the width of lines. A line of one word, such as a long link, cannot be broken.
func (c *checker) columns(p *page) {
	for _, l := range p.lines {
		broken := strings.ContainsAny(strings.TrimLeft(l.text, "-*>#0123456789. "), " ")
		if n := l.columns(); n > maxColumns && !l.code && !l.table && broken {
			c.say(p.path, l.number, "%d columns: break the line before column %d", n, maxColumns)
		}
	}
}

// treeOf returns the element of trees to which a document belongs.
func treeOf(name string) string {
	for _, t := range trees {
		if strings.HasPrefix(name, t) {
			return t
		}
	}
	return ""
}

// sentences checks the share of long sentences in each of trees.
func (c *checker) sentences() {
	all, long := map[string]int{}, map[string][]string{}
	for _, name := range slices.Sorted(maps.Keys(c.pages)) {
		in := treeOf(name)
		for _, s := range c.pages[name].sentence {
			all[in]++
			if s.words > maxWords {
				long[in] = append(long[in], fmt.Sprintf("%s:%d: %d words, split it: %.60s…",
					name, s.number, s.words, s.text))
			}
		}
	}
	for _, in := range trees {
		if share := float64(len(long[in])) / float64(max(1, all[in])); share > maxLong {
			c.problems = append(c.problems, long[in]...)
			c.problems = append(c.problems, fmt.Sprintf(
				"./%s: %.1f %% of %d sentences have more than %d words; at most %.0f %%",
				in, 100*share, all[in], maxWords, 100*maxLong))
		}
	}
}

var dated = regexp.MustCompile(`\b20\d\d-\d\d-\d\d\b|\bcommit [0-9a-f]{7}|` +
	`\b\d{1,2} (?:January|February|March|April|May|June|` +
	`July|August|September|October|November|December) 20\d\d`)

// history checks that a page has no dates and no commit IDs, which belong into results.
func (c *checker) history(p *page) {
	for _, l := range p.lines {
		text := inlineLink.ReplaceAllString(inlineCode.ReplaceAllString(l.text, ""), "$1")
		if found := dated.FindString(text); found != "" && !l.code {
			c.say(p.path, l.number, "%q: dates and commits stand in %s, with a link to the file",
				found, results)
		}
	}
}

// ourManifests matches the folder of the manifests of this tree in a command.
var ourManifests = regexp.MustCompile(`(?:^|[\s/])manifests/`)

// anImageOfTheTree matches the tag of images that are built from a tree.
var anImageOfTheTree = regexp.MustCompile(`\bkubeveil[a-z-]*:dev\b`)

// commands checks that commands and configurations for users take the files and images of a
// release, because users have no checkout.
func (c *checker) commands(p *page) {
	if !strings.HasPrefix(p.path, "docs/") || treeOf(p.path) == designs {
		return
	}
	for _, l := range p.lines {
		text := strings.ReplaceAll(l.text, "/etc/kubernetes/manifests/", "")
		if l.code && ourManifests.MatchString(text) {
			c.say(p.path, l.number, "users have no manifests/: take a file of the release")
		}
		if image := anImageOfTheTree.FindString(l.text); image != "" {
			c.say(p.path, l.number, "users have no %s: take the image of a release, v0.1.0", image)
		}
	}
}

// orphans checks that each document of docs is the target of a link.
func (c *checker) orphans() {
	for _, name := range slices.Sorted(maps.Keys(c.pages)) {
		folder := path.Dir(name)
		found := c.linked[name] || c.linked[folder] && folder+"/" == designs
		if strings.HasPrefix(name, "docs/") && !found {
			c.say(name, 1, "no document links to this one: add a link, such as from README.md")
		}
	}
}
