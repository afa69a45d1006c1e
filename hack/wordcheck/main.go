package main

import (
	_ "embed"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

//go:embed ceilings.txt
var ceilings string

// shown is how many findings of one rule and folder are printed.
const shown = 30

func main() {
	root := flag.String("C", ".", "`folder` of the repository")
	all := flag.Bool("all", false, "print every finding, also below the ceilings")
	flag.Parse()
	ok, err := run(*root, *all)
	if err != nil {
		fmt.Fprintln(os.Stderr, "wordcheck:", err)
		os.Exit(2)
	}
	if !ok {
		os.Exit(1)
	}
}

// run checks the files that git knows and reports whether all ceilings hold.
func run(root string, all bool) (bool, error) {
	limits, err := parseCeilings(ceilings)
	if err != nil {
		return false, err
	}
	out, err := exec.Command("git", "-C", root, "ls-files", "-z", "--cached", "--others",
		"--exclude-standard", "*.go", "*.c", "*.h",
		"*.md", "*.yaml", "*.sh", "Makefile", ".ci/run").Output()
	if err != nil {
		return false, fmt.Errorf("list files: %w", err)
	}

	var t tally
	for _, name := range strings.Split(strings.TrimRight(string(out), "\x00"), "\x00") {
		src, err := os.ReadFile(filepath.Join(root, name))
		if os.IsNotExist(err) { // deleted, and not committed yet
			continue
		}
		if err != nil {
			return false, err
		}
		if err := t.check(name, src); err != nil {
			return false, err
		}
	}
	return t.report(os.Stdout, limits, all), nil
}
