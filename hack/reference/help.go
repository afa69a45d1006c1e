package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// transcripts has the help texts that hack/frozen compares with the programs.
const transcripts = "hack/frozen/testdata/cli"

// help returns the help texts of a program. The program's own has no heading,
// each verb has one.
func help(program string) (string, error) {
	text, err := os.ReadFile(filepath.Join(root, transcripts, program+".txt"))
	if err != nil {
		return "", err
	}

	var b strings.Builder
	for call := range strings.SplitSeq("\n"+string(text), "\n$ ") {
		command, rest, _ := strings.Cut(call, "\n")
		verb, asked := strings.CutSuffix(strings.TrimPrefix(command, program), " -h")
		_, output, _ := strings.Cut(rest, " --\n") // the line that names the output
		if !asked || output == "" {
			continue
		}
		if verb != "" {
			fmt.Fprintf(&b, "## %s%s\n\n", program, verb)
		}
		fmt.Fprintf(&b, "```text\n%s\n```\n\n", strings.TrimSpace(output))
	}
	if b.Len() == 0 {
		return "", fmt.Errorf("%s/%s.txt has no help text", transcripts, program)
	}
	return strings.TrimSpace(b.String()), nil
}
