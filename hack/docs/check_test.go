package main

import (
	"slices"
	"strings"
	"testing"

	"github.com/kubeveil/kubeveil/internal/errtest"
)

// files returns a tree with these texts, by file name.
func files(texts map[string]string) *tree {
	t := newTree()
	for name, text := range texts {
		t.add(name, []byte(text))
	}
	return t
}

func TestDocumentsOfThisTree(t *testing.T) {
	tree, err := read("../..")
	errtest.Must(t, err)
	if len(tree.documents) < 20 || len(tree.tests) < 500 || len(tree.targets) < 20 ||
		len(tree.mentions) == 0 {
		t.Errorf("%d documents, %d tests, %d targets, %d mentions",
			len(tree.documents), len(tree.tests), len(tree.targets), len(tree.mentions))
	}
	for _, p := range check(tree) {
		t.Error(p)
	}
}

// helpTexts are the help texts of a veilctl with two commands.
const helpTexts = "# veilctl\n\n```text\nFlags:\n  -h, --help   help\n```\n" +
	"\n## veilctl status\n\n```text\n  -o, --output format   format\n```\n" +
	"\n## veilctl bench\n\n```text\n  -o, --output format   format\n" +
	"      --to directory   where\n```\n"

func TestProblemsAreFound(t *testing.T) {
	long := strings.Repeat("word ", 26) + "end.\n"
	for _, c := range []struct {
		name, page, want string
	}{
		{"nothing wrong", "[b](b.md#two-words), `pkg/a/a.go`, `TestA`, `make test`, `pkg/a.Plan`\n",
			""},
		{"file of a link", "[b](c.md)\n", "link to c.md: there is no docs/c.md: write"},
		{"moved file", "[b](../b.md)\n", "there is no b.md; write docs/b.md"},
		{"anchor", "[b](b.md#two-word)\n", "no such heading; write one of #two-words"},
		{"anchor of the same page", "[b](#here)\n", "docs/a.md has no such heading"},
		{"broken link", "[two\nwords](c.md)\n", "docs/a.md:4: link to c.md"},
		{"broken code", "`make\ntset`, `make test`\n", "the Makefile has no target tset"},
		{"link in code", "`[b](c.md)`\n", ""},
		{"link outside", "[b](https://example.com/x#y)\n", ""},
		{"columns", strings.Repeat("wide words. ", 10) + "\n", "docs/a.md:3: 120 columns: break"},
		{"columns of a table", "| " + strings.Repeat("wide. ", 30) + " |\n", ""},
		{"columns of code", "```\n" + strings.Repeat("wide ", 30) + "\n```\n", ""},
		{"sentence", "x.\n\n" + wrap(long), "docs/a.md:5: 27 words, split it"},
		{"sentence of a list", "x\n* " + wrap(long), "docs/a.md:4: 27 words, split it"},
		{"parts of a cell", "| " + strings.Repeat(strings.Repeat("x ", 20)+"; ", 2) + "|\n", ""},
		{"manifests", "```sh\nkubectl apply -k manifests/csi\n```\n", "docs/a.md:4: users have no"},
		{"image", "`registry.example/kubeveil-tools:dev`\n", "docs/a.md:3: users have no kubeveil-t"},
		{"other manifests", "```sh\nls /etc/kubernetes/manifests/\n```\n`pkg/a/a.go`\n", ""},
		{"path", "`pkg/b/a.go`\n", "docs/a.md:3: there is no pkg/b/a.go; write pkg/a/a.go"},
		{"path in a command", "```sh\ngo run ./pkg/b\n```\n", "docs/a.md:4: there is no pkg/b"},
		{"path in YAML", "```yaml\nresources: [pkg/b]\n```\n", ""},
		{"path of somewhere else", "`/var/lib/pkg/b`, `pkg/*/x`\n", ""},
		{"test", "`TestAB`\n", "docs/a.md:3: there is no test TestAB; write"},
		{"tests by their beginning", "`Test*`, `TestA…`\n", ""},
		{"target", "`make tset`\n", "docs/a.md:3: the Makefile has no target tset"},
		{"word that is no call of make", "```sh\n# what would make others\n```\n", ""},
		{"flag", "`veilctl bench --to x -o json`, `-o table`, `--to y`, `veild -to x`\n", ""},
		{"flag with one dash", "`veilctl bench -to x`\n",
			"docs/a.md:3: veilctl has no flag -to: write --to"},
		{"bare flag with one dash", "`veilctl bench` chooses\nby `-to\nx`\n",
			"docs/a.md:4: veilctl has no flag -to"},
		{"flag of a call in a pod", "```sh\nkubectl -n x exec p -- veilctl bench -to x\n```\n",
			"docs/a.md:4: veilctl has no flag -to: write --to"},
		{"flag of another command", "`veilctl status --to x`\n",
			"docs/a.md:3: veilctl status has no flag --to: see docs/reference/veilctl.md"},
		{"flag of an unknown program", "`veilctl bench`, `--from`\n", ""},
		{"flag of another program",
			"`veilctl bench $(x -q) -to`, `veilctl | jq -r`, `veild`, `-to`\n", ""},
		{"date", "Seen on 22 November 2026.\n", `"22 November 2026": dates and commits`},
		{"commit", "Since commit 4102a68 it is so.\n", "dates and commits stand in"},
	} {

		t.Run(c.name, func(t *testing.T) {
			got := check(files(map[string]string{
				"README.md":       "# R\n[a](docs/a.md)\n[b](docs/b.md)\n",
				"docs/a.md":       "# A\n\n" + c.page,
				"docs/b.md":       "# B\n\n## Two words\n[v](reference/veilctl.md)\n",
				reference:         helpTexts,
				"pkg/a/a.go":      "// See docs/b.md.\npackage a\n",
				"pkg/a/a_test.go": "func TestA(t *testing.T) {}\n",
				"Makefile":        "test: ## run\n",
			}))

			wanted := func(problem string) bool { return strings.Contains(problem, c.want) }
			if c.want == "" && len(got) > 0 || c.want != "" && !slices.ContainsFunc(got, wanted) {
				t.Errorf("want %q, got %q", c.want, got)
			}
		})
	}
}

// wrap breaks a text into short lines.
func wrap(text string) string {
	var b strings.Builder
	for i, w := range strings.Fields(text) {
		b.WriteString(w)
		if i%10 == 9 {
			b.WriteString("\n  ")
		} else {
			b.WriteString(" ")
		}
	}
	return b.String() + "\n"
}

func TestFewLongSentencesPass(t *testing.T) {
	text := "# A\n\n" + strings.Repeat("Short.\n", 40) + wrap(strings.Repeat("word ", 30)+"end.")
	if got := check(files(map[string]string{"README.md": text})); len(got) > 0 {
		t.Error(got)
	}
}

func TestWhatOtherFilesHoldIsChecked(t *testing.T) {
	note := "# N\n\nStatus: built.\n\n## Context\n\n## Decision\n\n## Rejected\n"
	got := check(files(map[string]string{
		"README.md":             "# R\n[n](docs/design/)\n",
		"docs/design/0001-a.md": note + "\n## How we would notice it was wrong\n",
		"docs/design/0002-b.md": note + "\n" + strings.Repeat("Word.\n", 1999),
		index: "# D\n| [0001](0001-a.md) | built | How it is A |\n" +
			"| [0002](0002-b.md) | built | How it is B |\n",
		"docs/lost.md":           "# Lost\n",
		"e2e/results/2026-a.md":  "# 22 November 2026, commit 4102a68\n\n`pkg/gone`\n",
		"pkg/a/a.go":             "package a\n\n// docs/gone.md, docs/cri/config.md of others\n",
		"manifests/service.yaml": "# docs/design/0001-a.md\n",
	}))
	want := []string{
		"docs/design/0002-b.md:1: 2001 words, at most 2000: cut, or split the note",
		`docs/design/0002-b.md:1: no heading "## How we would notice": ` +
			`a note has Context, Decision, Rejected, How we would notice`,
		"docs/lost.md:1: no document links to this one: add a link, such as from README.md",
		"pkg/a/a.go:3: there is no docs/gone.md: write its path of today, or leave it out",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestDesignNotesAreInTheIndex(t *testing.T) {
	note := func(status string) string {
		return "# N\n" + status +
			"\n## Context\n## Decision\n## Rejected\n## How we would notice\n"
	}

	got := check(files(map[string]string{
		"README.md":             "# R\n[n](docs/design/)\n",
		"docs/design/0001-a.md": note("For all. Status: built. It amends nothing."),
		"docs/design/0002-b.md": note("Status: decided."),
		"docs/design/0003-c.md": note("Status: built."),
		"docs/design/0004-d.md": note("Status: accepted."),
		"docs/design/0005-e.md": note(""),
		index: "# D\n\n| note | status | what it decides |\n|---|---|---|\n" +
			"| [0002](0002-b.md) | built | How packets are dropped |\n" +
			"| [0001](0001-a.md) | built | How packets are counted |\n",
	}))

	want := []string{
		"docs/design/README.md:1: 0001 is below 0002: sort the rows by number",
		"docs/design/README.md:1: 0002-b.md is built here, and says of itself that it is " +
			"decided: make them equal",
		"docs/design/README.md:1: no row for docs/design/0003-c.md: " +
			"add | [0003](0003-c.md) | built | what it decides |",
		`docs/design/0004-d.md:1: its status is "accepted": write a sentence such as ` +
			`"Status: decided." with one of proposed, decided, built, superseded`,
		`docs/design/0005-e.md:1: its status is "": write a sentence such as "Status: decided." ` +
			`with one of proposed, decided, built, superseded`,
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
