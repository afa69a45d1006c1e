package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// module is the path of this module.
const module = "github.com/kubeveil/kubeveil"

// ofRelease makes the programs name images as those of a release do, because readers have one.
const ofRelease = "-X " + module + "/pkg/remote.toolsImage=localhost/kubeveil-tools:v0.1.0"

// programs is the path of a folder with the built programs of the tree.
type programs string

// build builds all programs into the folder, like hack/build.sh, but without symbols.
func (p programs) build() error {
	cmd := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w "+ofRelease,
		"-o", string(p), module+"/cmd/...", module+"/plugins/...")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%v: %w\n%s", cmd, err, out)
	}
	return nil
}

// command returns a command that runs a program.
func (p programs) command(program string, args ...string) *exec.Cmd {
	return exec.Command(filepath.Join(string(p), program), args...)
}

// output runs a program and returns its standard output and standard error. An exit status other
// than 0 is an error.
func (p programs) output(program string, args ...string) (string, error) {
	cmd := p.command(program, args...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%v: %w\n%s", cmd, err, out)
	}
	return string(out), nil
}

// help returns the help texts of a program. The text of each verb has a heading; the text of the
// program itself has none.
func (p programs) help(program string) (string, error) {
	var verbs [][]string
	var err error
	switch program {
	case "veilctl":
		verbs, err = p.cobraTree(program, nil)
		// Package cobra adds these two commands to every program.
		verbs = slices.DeleteFunc(verbs, func(verb []string) bool {
			return verb[0] == "completion" || verb[0] == "help"
		})
	case "veil-csi":
		verbs = [][]string{{"cleanup"}, {"place-copies"}}
	}
	if err != nil {
		return "", err
	}

	var b strings.Builder
	for _, verb := range slices.Insert(verbs, 0, nil) {
		text, err := p.output(program, append(slices.Clone(verb), "-h")...)
		if err != nil {
			return "", err
		}
		if len(verb) > 0 {
			fmt.Fprintf(&b, "## %s %s\n\n", program, strings.Join(verb, " "))
		}
		fmt.Fprintf(&b, "```text\n%s\n```\n\n", strings.TrimSpace(text))
	}
	return strings.TrimSpace(b.String()), nil
}

// cobraTree returns the commands below parent that are not hidden, for a program that uses package
// cobra. Parents come before their children. Siblings have the order of the program's completions.
func (p programs) cobraTree(program string, parent []string) (all [][]string, err error) {
	help, err := p.output(program, append(slices.Clone(parent), "-h")...)
	if err != nil {
		return nil, err
	}
	path := strings.Join(append([]string{program}, parent...), " ")
	if !strings.Contains(help, "\n  "+path+" [command]\n") {
		return nil, nil // without commands, the completions would be arguments
	}
	args := append(append([]string{"__complete"}, parent...), "")
	completions, err := p.command(program, args...).Output()
	if err != nil {
		return nil, fmt.Errorf("%s %q: %w", program, args, err)
	}

	for line := range strings.Lines(string(completions)) {
		name, _, described := strings.Cut(line, "\t")
		if !described {
			continue // the last line is a directive for the shell
		}
		child := append(slices.Clone(parent), name)
		children, err := p.cobraTree(program, child)
		if err != nil {
			return nil, err
		}
		all = append(append(all, child), children...)
	}
	return all, nil
}
