package main

import (
	_ "embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/spf13/pflag"

	"github.com/kubeveil/kubeveil/internal/commandline"
)

//go:embed ceilings.txt
var ceilings string

const usage = `Check the sentences of the tree against the ceilings in hack/wordcheck/ceilings.txt.

Usage: go run ./hack/wordcheck [flags]

Flags:
`

// shown is how many findings of one rule and folder are printed.
const shown = 30

func main() {
	flags := commandline.New("go run ./hack/wordcheck")
	root := flags.StringP("root", "C", ".", "`folder` of the repository")
	var o options
	flags.BoolVar(&o.all, "all", false, "print every finding, also below the ceilings")
	flags.BoolVar(&o.lower, "lower", false, "lower the numbers in ceilings.txt to what is found")
	flags.BoolVar(&o.review, "review", false,
		"print the sentences with tell, ask and say, which a person has to judge; check nothing")
	switch err := commandline.ParseAll(flags, usage, os.Args[1:], os.Stdout); {
	case errors.Is(err, pflag.ErrHelp):
		return
	case err != nil:
		fmt.Fprintln(os.Stderr, "wordcheck:", err)
		os.Exit(2)
	}

	ok, err := run(*root, o)
	if err != nil {
		fmt.Fprintln(os.Stderr, "wordcheck:", err)
		os.Exit(2)
	}
	if !ok {
		os.Exit(1)
	}
}

// options are the options of the command line.
type options struct {
	all, lower, review bool
}

// run checks the files that git knows and reports whether all ceilings hold.
func run(root string, o options) (bool, error) {
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

	switch {
	case o.review:
		for _, f := range t.reviewed {
			fmt.Printf("%s:%d: %s\n", f.file, f.line, f.message)
		}
		return true, nil
	case o.lower:
		if err := t.lowerFile(filepath.Join(root, "hack/wordcheck/ceilings.txt")); err != nil {
			return false, err
		}
	}
	return t.report(os.Stdout, limits, o.all), nil
}

// lowerFile writes ceilings.txt with lower numbers.
func (t *tally) lowerFile(name string) error {
	text, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	lowered, err := t.lower(string(text))
	if err != nil {
		return err
	}
	return os.WriteFile(name, []byte(lowered), 0o644)
}
