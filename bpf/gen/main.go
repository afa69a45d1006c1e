// Command gen writes what is generated from the list of drop reasons. It is
// run in the directory of package bpf, by go generate.
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
