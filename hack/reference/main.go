package main

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

const (
	// root leads from this directory to the root of the tree.
	root = "../.."
	// folder holds the pages, from the root of the tree, except architecture.
	folder       = "docs/reference"
	architecture = "docs/architecture.md"
)

// part matches a generated part of a page between two marks. Its groups are the first mark, the
// kind and the arguments in it, the text, and the last mark.
var part = regexp.MustCompile(`(?ms)(^<!-- hack/reference: (\w+)([^\n]*) -->\n)(.*?)` +
	`(^<!-- end -->$)`)

// maker returns the text of a part for the arguments in its mark. old is the present text.
type maker func(arguments []string, old string) (string, error)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "reference:", err)
		os.Exit(1)
	}
}

// run writes the pages.
func run() error {
	dir, err := os.MkdirTemp("", "kubeveil-reference")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	bin := programs(dir)
	if err := bin.build(); err != nil {
		return err
	}

	pages, err := render(bin)
	for name, text := range pages {
		if err == nil {
			err = os.WriteFile(filepath.Join(root, name), []byte(text), 0o644)
		}
	}
	return err
}

// render returns the text of each page with current parts, by its path from the root of the tree.
// Help texts come from the programs of bin.
func render(bin programs) (map[string]string, error) {
	keys, err := configKeys()
	if err != nil {
		return nil, err
	}
	kinds := map[string]maker{
		"keys":       table(rows(keys).refresh),
		"parameters": table(rows(classParameters()).refresh),
		"metrics":    table(each(metrics)),
		"alerts":     table(each(alerts)),
		"packages":   table(each(packages)),
		"rules":      table(func([]string, string) (string, error) { return importRules(), nil }),
		"floors":     each(floors),
		"help":       each(bin.help),
	}
	missing := maps.Clone(kinds)
	files, err := filepath.Glob(filepath.Join(root, folder, "*.md"))
	if err != nil {
		return nil, err
	}

	pages := map[string]string{}
	for _, file := range append(files, filepath.Join(root, architecture)) {
		old, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		var errs []error
		name := strings.TrimPrefix(file, root+"/")
		pages[name] = part.ReplaceAllStringFunc(string(old), func(text string) string {
			m := part.FindStringSubmatch(text)
			delete(missing, m[2])
			current, err := "", fmt.Errorf("there is no kind %q", m[2])
			if kind := kinds[m[2]]; kind != nil {
				current, err = kind(strings.Fields(m[3]), m[4])
			}
			if err != nil {
				errs = append(errs, fmt.Errorf("%s: %s%w", name, m[1], err))
			}
			return m[1] + current + "\n" + m[5]
		})
		if name == architecture {
			pages[name], err = places(pages[name])
		}
		if err := errors.Join(append(errs, err)...); err != nil {
			return nil, err
		}
	}
	if len(missing) > 0 {
		return nil, fmt.Errorf("no page has a part of the kinds %q",
			slices.Sorted(maps.Keys(missing)))
	}
	return pages, nil
}

// each returns a function that joins what one returns for each argument.
func each(one func(string) (string, error)) maker {
	return func(arguments []string, _ string) (string, error) {
		var all []string
		for _, a := range arguments {
			text, err := one(a)
			if err != nil {
				return "", err
			}
			all = append(all, text)
		}
		return strings.Join(all, "\n"), nil
	}
}

// table returns a function that keeps the first two lines of a table, and replaces the others by
// the rows that the function body returns for them.
func table(body maker) maker {
	return func(arguments []string, old string) (string, error) {
		lines := strings.SplitAfterN(old, "\n", 3)
		if len(lines) < 3 {
			return "", errors.New("a table begins with two lines")
		}
		text, err := body(arguments, lines[2])
		return lines[0] + lines[1] + text, err
	}
}

// rows are entries of a table that a page must explain, each once: the columns in the middle, by
// name.
type rows map[string]string

// refresh returns the rows of a table with current columns in the middle. It keeps the name, the
// meaning, and before the meaning a text that explains a default value.
func (r rows) refresh(_ []string, old string) (string, error) {
	rest := maps.Clone(r)
	var all []string
	for line := range strings.Lines(old) {
		cells := strings.Split(strings.Trim(line, "| \n"), " | ")
		name := strings.Trim(cells[0], "`")
		middle, ok := rest[name]
		if !ok || len(cells) < 3 {
			return "", fmt.Errorf("the code has no %q, or the page has it twice: remove the row",
				name)
		}
		delete(rest, name)
		if kept := cells[len(cells)-2]; kept != "none" && !strings.HasPrefix(kept, "`") {
			middle = middle[:strings.LastIndex(middle, "|")+1] + " " + kept
		}
		all = append(all, fmt.Sprintf("| `%s` %s | %s |", name, middle, cells[len(cells)-1]))
	}
	for name := range rest {
		return "", fmt.Errorf("the page does not explain %q: add a row", name)
	}
	return strings.Join(all, "\n"), nil
}
