package main

import (
	"fmt"
	"go/doc"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/kubeveil/kubeveil/hack/deptest"
)

// packages returns the table rows for the packages in a folder and below, each with the first
// sentence of its package comment. It skips nested modules.
func packages(folder string) (string, error) {
	var rows []string
	err := fs.WalkDir(os.DirFS(root), folder, func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case !d.IsDir():
			return nil
		case d.Name() == "testdata" || hasFile(name, "go.mod"):
			return fs.SkipDir
		}
		sentence, err := sentenceOf(name)
		if err == nil && sentence != "" {
			rows = append(rows, fmt.Sprintf("| [%s](../%s) | %s |", name, name, sentence))
		}
		return err
	})
	if err == nil && len(rows) == 0 {
		err = fmt.Errorf("%s has no package", folder)
	}
	return strings.Join(rows, "\n"), err
}

func hasFile(folder, name string) bool {
	_, err := os.Stat(filepath.Join(root, folder, name))
	return err == nil
}

// sentenceOf returns the first sentence of a package comment without its subject, which is "Package
// NAME", "Command NAME", or the name of the command. It returns "" for a folder without a package.
func sentenceOf(folder string) (string, error) {
	files, err := filepath.Glob(filepath.Join(root, folder, "*.go"))
	if err != nil {
		return "", err
	}
	files = slices.DeleteFunc(files, func(f string) bool {
		return strings.HasSuffix(f, "_test.go")
	})

	for _, f := range files {
		file, err := parser.ParseFile(token.NewFileSet(), f, nil,
			parser.PackageClauseOnly|parser.ParseComments)
		if err != nil {
			return "", err
		}
		if file.Doc == nil {
			continue
		}

		subjects := []string{"Package " + file.Name.Name + " "}
		if name := path.Base(folder); file.Name.Name == "main" {
			subjects = []string{"Command " + name + " ", strings.ToUpper(name[:1]) + name[1:] + " "}
		}
		sentence := new(doc.Package).Synopsis(file.Doc.Text())
		for _, s := range subjects {
			if rest, ok := strings.CutPrefix(sentence, s); ok {
				return short(rest), nil
			}
		}
		return "", fmt.Errorf("the comment of %s does not begin with %q", folder, subjects[0])
	}
	if len(files) > 0 {
		return "", fmt.Errorf("%s has no package comment: write one in doc.go", folder)
	}
	return "", nil
}

// short adapts a sentence to a table cell. It splits a sentence that is too long for a page into
// two sentences at its first colon.
func short(sentence string) string {
	const words = 25 // hack/docs has the same limit
	sentence = strings.TrimRight(sentence, ".:")
	what, how, ok := strings.Cut(sentence, ": ")
	if ok && how != "" && len(strings.Fields(sentence)) > words {
		sentence = what + ". " + strings.ToUpper(how[:1]) + how[1:]
	}
	return strings.ReplaceAll(sentence, "|", `\|`)
}

// floors returns a drawing of the floors of a room, the highest first.
func floors(room string) (string, error) {
	layers, ok := deptest.Layers[room]
	if !ok {
		return "", fmt.Errorf("room %s has no floors", room)
	}

	const width = 46
	var b strings.Builder
	b.WriteString("```text\n")
	for i, l := range layers {
		if i > 0 {
			b.WriteString("      │\n")
		}

		lines := []string{""}
		for _, p := range l.Packages {
			name := strings.TrimPrefix(p, room+"/")
			last := &lines[len(lines)-1]
			if len(*last)+len(name) > width {
				lines = append(lines, "")
				last = &lines[len(lines)-1]
			}
			*last += name + "  "
		}
		for j, line := range lines {
			what := ""
			if j == 0 {
				what = l.What
			}
			text := fmt.Sprintf("  %-*s%s", width+2, line, what)
			b.WriteString(strings.TrimRight(text, " ") + "\n")
		}
	}
	return b.String() + "```", nil
}

// importRules returns the table rows for the import rules.
func importRules() string {
	var rows []string
	for _, r := range deptest.Rules {
		allowed := "nothing"
		if len(r.Allow) > 0 {
			allowed = codes(r.Allow)
		}
		if len(r.Tests) > 0 {
			allowed += ", tests of " + codes(r.Tests)
		}
		in := "the product"
		if len(r.In) > 0 {
			in = codes(r.In)
		}
		rows = append(rows, fmt.Sprintf("| %s | %s | %s | %s |", codes(r.Deps), in, allowed,
			r.Reason))
	}
	return strings.Join(rows, "\n")
}

func codes(names []string) string {
	return "`" + strings.Join(names, "`, `") + "`"
}
