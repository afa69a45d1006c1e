package main

import (
	"path"
	"regexp"
	"slices"
	"strings"
)

// reference is the document with the help texts of veilctl. It is generated from the program.
const reference = "docs/reference/veilctl.md"

// programs are names of programs. In code, flags belong to the last of these programs before them.
var programs = []string{"veilctl", "veild", "veil-wg", "veil-csi", "veil-site", "veil-tools",
	"kvlab", "kubectl", "make"}

var (
	flagLine = regexp.MustCompile(`^ {2,6}(?:-([a-zA-Z]), )?(?:    )?--([a-z][a-z-]*)`)
	flagWord = regexp.MustCompile(`^(--?)([a-zA-Z][\w-]*)`)
	// A command ends at a pipe or another control operator, a redirection, a comment, or a command
	// substitution.
	commandEnd = regexp.MustCompile(`^(?:[|;&>#)]|\$\(|2>)`)
)

// flagsOf holds the flags of each command, such as "--to" and "-o" for "veilctl bench storage".
type flagsOf map[string][]string

// readFlags returns the flags in the help texts of the reference.
func readFlags(text string) flagsOf {
	all, command := flagsOf{}, ""
	for line := range strings.SplitSeq(text, "\n") {
		if name, ok := strings.CutPrefix(line, "## "); ok || strings.HasPrefix(line, "# ") {
			command = strings.TrimPrefix(name, "# ")
			continue
		}
		if m := flagLine.FindStringSubmatch(line); m != nil {
			all[command] = append(all[command], "--"+m[2])
			if m[1] != "" {
				all[command] = append(all[command], "-"+m[1])
			}
		}
	}
	return all
}

// snippet is code in a page: a line of a fenced block, or an inline span.
type snippet struct {
	line int
	text string
	span bool
}

// snippets returns the lines of shell code and the inline spans of a page, in their order.
func (p *page) snippets() []snippet {
	var all []snippet
	for _, l := range p.lines {
		if l.code && shells[l.fence] {
			all = append(all, snippet{line: l.number, text: l.text})
		}
	}
	for _, b := range p.blocks() {
		for _, at := range inlineCode.FindAllStringIndex(b.text, -1) {
			text := strings.Trim(b.text[at[0]:at[1]], "`")
			all = append(all, snippet{line: b.line(at[0]), text: text, span: true})
		}
	}

	slices.SortStableFunc(all, func(a, b snippet) int { return a.line - b.line })
	return all
}

// flags checks that veilctl has the flags that the page names. A span that begins with a flag, such
// as `-o json`, belongs to the program that the page named last. If veilctl lacks that flag, the
// flag belongs to another program.
func (c *checker) flags(p *page) {
	if p.path == reference || len(c.veilctl) == 0 {
		return
	}
	last := ""
	for _, s := range p.snippets() {
		words := strings.Fields(s.text)
		if s.span && len(words) > 0 && strings.HasPrefix(words[0], "-") && last == "veilctl" {
			c.flagWords(p, s.line, "", words)
		}
		for i, w := range words {
			name := path.Base(strings.Trim(w, `$("'`))
			if !slices.Contains(programs, name) {
				continue
			}
			if last = name; name == "veilctl" {
				c.command(p, s.line, words[i+1:])
			}
		}
	}
}

// command checks the flags in a call of veilctl. words are the words after "veilctl".
func (c *checker) command(p *page, line int, words []string) {
	name := "veilctl"
	for len(words) > 0 && c.veilctl.begins(name+" "+words[0]) {
		name, words = name+" "+words[0], words[1:]
	}
	c.flagWords(p, line, name, words)
}

// flagWords checks the flags among words up to the end of the command. An empty name means any
// command of veilctl.
func (c *checker) flagWords(p *page, line int, name string, words []string) {
	for _, w := range words {
		if commandEnd.MatchString(w) {
			return
		}
		m := flagWord.FindStringSubmatch(w)
		if m == nil || c.veilctl.has(name, m[0]) {
			continue
		}
		if long := "--" + m[2]; c.veilctl.has(name, long) {
			c.say(p.path, line, "veilctl has no flag %s: write %s", m[0], long)
		} else if name != "" {
			c.say(p.path, line, "%s has no flag %s: see %s", name, m[0], reference)
		}
	}
}

// begins reports whether name is a command or the parent of commands.
func (f flagsOf) begins(name string) bool {
	for command := range f {
		if command == name || strings.HasPrefix(command, name+" ") {
			return true
		}
	}
	return false
}

// has reports whether the command has the flag. If command is empty, or only the parent of other
// commands, it has the flags of all commands whose names begin with it.
func (f flagsOf) has(command, flag string) bool {
	if own, ok := f[command]; ok {
		return slices.Contains(own, flag)
	}
	for name, flags := range f {
		if strings.HasPrefix(name, command) && slices.Contains(flags, flag) {
			return true
		}
	}
	return false
}
