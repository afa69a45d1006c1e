package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// tree holds the data about the source tree that the checks need.
type tree struct {
	files     map[string]bool // files and folders
	documents map[string]string
	tests     map[string]bool
	targets   map[string]bool // of the Makefile
	mentions  []mention
}

// mention is a place in code that names a document.
type mention struct {
	file     string
	line     int
	document string
}

var (
	testFunc   = regexp.MustCompile(`(?m)^func ((?:Test|Fuzz|Benchmark)\w+)\(`)
	makeTarget = regexp.MustCompile(`(?m)^([a-z0-9-]+):`)
)

func newTree() *tree {
	return &tree{
		files: map[string]bool{}, documents: map[string]string{},
		tests: map[string]bool{}, targets: map[string]bool{},
	}
}

// read reads the tree at root: the files that Git tracks, and untracked files that are not ignored.
func read(root string) (*tree, error) {
	list := exec.Command("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
	list.Dir = root
	out, err := list.Output()
	if err != nil {
		return nil, fmt.Errorf("%v: %w", list, err)
	}

	t := newTree()
	for name := range strings.SplitSeq(strings.TrimSuffix(string(out), "\x00"), "\x00") {
		var text []byte
		if interesting(name) {
			text, err = os.ReadFile(filepath.Join(root, name))
		} else {
			_, err = os.Lstat(filepath.Join(root, name))
		}
		if os.IsNotExist(err) {
			continue // deleted, and not committed yet
		} else if err != nil {
			return nil, err
		}
		t.add(name, text)
	}
	return t, nil
}

// interesting reports whether the text of a file is checked.
func interesting(name string) bool {
	extensions := []string{".md", ".go", ".c", ".h", ".sh", ".yaml", ".service"}
	return slices.Contains(extensions, path.Ext(name)) || name == "Makefile" || name == ".ci/run"
}

// add adds a file and the folders that contain it.
func (t *tree) add(name string, text []byte) {
	for at := name; at != "." && !t.files[at]; at = path.Dir(at) {
		t.files[at] = true
	}
	switch {
	case path.Ext(name) == ".md":
		t.documents[name] = string(text)
		return
	case name == "Makefile":
		for _, m := range makeTarget.FindAllSubmatch(text, -1) {
			t.targets[string(m[1])] = true
		}
	case strings.HasSuffix(name, "_test.go"):
		for _, m := range testFunc.FindAllSubmatch(text, -1) {
			t.tests[string(m[1])] = true
		}
	}
	if strings.HasPrefix(name, "hack/docs/") || !bytes.Contains(text, []byte("docs/")) {
		return
	}
	for i, line := range strings.Split(string(text), "\n") {
		for _, m := range docName.FindAllStringSubmatch(line, -1) {
			t.mentions = append(t.mentions, mention{name, i + 1, m[1]})
		}
	}
}

// has reports whether name is a file, a folder, or a package with an identifier, such as
// pkg/tunnel.Plan.
func (t *tree) has(name string) bool {
	folder, _, found := strings.Cut(path.Base(name), ".")
	return t.files[name] || found && t.files[path.Join(path.Dir(name), folder)]
}

func (t *tree) hasTest(name string, begins bool) bool {
	if begins {
		for test := range t.tests {
			if strings.HasPrefix(test, name) {
				return true
			}
		}
	}
	return t.tests[name]
}

// instead returns the end of a message about the missing file name: it suggests existing files with
// the same base name.
func (t *tree) instead(name string) string {
	var same []string
	for file := range t.files {
		if path.Base(file) == path.Base(name) {
			same = append(same, file)
		}
	}
	if len(same) == 0 {
		return ": write its path of today, or leave it out"
	}
	slices.Sort(same)
	return "; write " + strings.Join(same[:min(3, len(same))], " or ")
}

func (t *tree) insteadTest(name string) string {
	var names []string
	for test := range t.tests {
		names = append(names, test)
	}
	slices.Sort(names)
	return "; write its name of today, such as " + strings.Join(closest(name, names, 2), " or ")
}

// closest returns the n names that are most similar to name, by the pairs of letters that they have
// in common (Dice's coefficient).
func closest(name string, names []string, n int) []string {
	pairs := func(s string) map[string]bool {
		set := map[string]bool{}
		for i := range len(s) - 1 {
			set[s[i:i+2]] = true
		}
		return set
	}

	want := pairs(name)
	likeness := func(s string) float64 {
		have, both := pairs(s), 0
		for p := range have {
			if want[p] {
				both++
			}
		}
		return 2 * float64(both) / float64(len(have)+len(want)+1)
	}

	sorted := slices.Clone(names)
	slices.SortStableFunc(sorted, func(a, b string) int {
		switch la, lb := likeness(a), likeness(b); {
		case la > lb:
			return -1
		case la < lb:
			return 1
		}
		return 0
	})
	return sorted[:min(n, len(sorted))]
}
