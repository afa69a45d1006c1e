// Command gen writes the files that are generated from the list of drop reasons. go generate runs
// it in the directory of package bpf.
package main

import (
	"fmt"
	"os"

	"github.com/kubeveil/kubeveil/bpf"
)

func main() {
	for file, text := range map[string]string{bpf.HeaderFile: bpf.Header(),
		bpf.DocumentFile: bpf.Document()} {
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
}
