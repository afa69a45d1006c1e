// Command gen writes the files that are generated from the list of drop reasons, and compiles the
// programs. go generate runs it in the directory of package bpf. With a folder as its argument it
// only compiles, into that folder.
package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/cilium/ebpf/cmd/bpf2go/gen"

	"github.com/kubeveil/kubeveil/bpf"
)

// programs are the files of progs, each with its flags in addition to the common flags. The
// programs of services need version 3 of the instruction set (Linux 5.12), because they use atomic
// operations that return the old value.
var programs = map[string][]string{
	"guard_ingress":  nil,
	"guard_egress":   nil,
	"service_socket": {"-mcpu=v3"},
	"service_packet": {"-mcpu=v3"},
}

func main() {
	dir := "."
	if len(os.Args) > 1 {
		dir = os.Args[1]
	} else if err := writeReasons(); err != nil {
		fail(err)
	}
	for name, flags := range programs {
		if err := compile(dir, name, flags); err != nil {
			fail(fmt.Errorf("compile %s: %w", name, err))
		}
	}
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

func writeReasons() error {
	for file, text := range map[string]string{bpf.HeaderFile: bpf.Header(),
		bpf.DocumentFile: bpf.Document()} {
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// compile makes the little-endian object of progs/name.c in dir.
func compile(dir, name string, flags []string) error {
	here, err := os.Getwd()
	if err != nil {
		return err
	}
	object, err := filepath.Abs(
		filepath.Join(dir, strings.ReplaceAll(name, "_", "")+"_bpfel.o"))
	if err != nil {
		return err
	}
	target, _, err := gen.FindTarget("bpfel")
	if err != nil {
		return err
	}
	return gen.Compile(gen.CompileArgs{
		CC: "clang-" + bpf.ClangVersion, Strip: "llvm-strip-" + bpf.ClangVersion,
		Flags: append([]string{"-Wall", "-Wextra", "-Werror", "-Wshadow", "-Iinclude", "-Ilib"},
			flags...),
		Target: target, Workdir: here, Source: filepath.Join(here, "progs", name+".c"),
		Dest: object,
	})
}
