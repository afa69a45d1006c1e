package bpf

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/kubeveil/kubeveil/internal/filetest"
	"github.com/kubeveil/kubeveil/internal/nettest"
)

func TestMain(m *testing.M) { os.Exit(nettest.Run(m)) }

func TestReasonsAreNumberedAndNamedOnce(t *testing.T) {
	names := make(map[string]bool)
	const retired = 12
	last := uint32(0)
	for _, r := range Reasons {
		if r.Number <= last || r.Number == retired {
			t.Errorf("reason %s has number %d after %d: numbers are in order, 0 is none and %d "+
				"was another's", r.Name, r.Number, last, retired)
		}
		last = r.Number
		if names[r.Name] ||
			!regexp.MustCompile(`^[a-z][a-z0-9]*(_[a-z0-9]+)*$`).MatchString(r.Name) {
			t.Errorf("reason %d: name %q is not in snake case, or twice", r.Number, r.Name)
		}
		names[r.Name] = true
		if !strings.HasSuffix(r.Sentence, ".") {
			t.Errorf("reason %s: %q is not a sentence", r.Name, r.Sentence)
		}
	}
}

// TestEachDropHasAReason checks that only drop and service_drop, which both count, return the
// verdict to drop.
func TestEachDropHasAReason(t *testing.T) {
	counting := map[string]int{"lib/packet/drop.h": 1, "lib/service/refuse.h": 1,
		"include/kernel.h": 2}
	used := ""
	for _, file := range sources(t) {
		text := filetest.Read(t, file)
		if got := strings.Count(string(text), "VERDICT_DROP"); got != counting[file] {
			t.Errorf("%s has VERDICT_DROP %d times, want %d: use drop of lib/packet/drop.h", file,
				got,
				counting[file])
		}
		if file != HeaderFile {
			used += string(text)
		}
	}
	for _, r := range Reasons {
		inTable := []uint32{11, 14, 15, 17, 30, 31, 32, 33, 34, 35} // of nftables alone
		name := "REASON_" + strings.ToUpper(r.Name)
		if !regexp.MustCompile(`\b`+name+`\b`).MatchString(used) &&
			!slices.Contains(inTable, r.Number) {
			t.Errorf("no program drops for %s", r.Name)
		}
	}
}

func TestGeneratedTextIsCurrent(t *testing.T) {
	for file, want := range map[string]string{HeaderFile: Header(), DocumentFile: Document()} {
		got := filetest.Read(t, file)
		if string(got) != want {
			t.Errorf("%s is not what reasons.go says: run go generate ./bpf", file)
		}
	}
}

// TestObjectsAreCurrent compiles the programs and compares bytes.
func TestObjectsAreCurrent(t *testing.T) {
	nettest.NeedProgram(t, "clang-"+ClangVersion)
	nettest.NeedProgram(t, "llvm-strip-"+ClangVersion)
	dir := t.TempDir()
	if out, err := exec.Command("go", "run", "./gen", dir).CombinedOutput(); err != nil {
		t.Fatalf("compile: %v\n%s", err, out)
	}

	made, err := filepath.Glob(filepath.Join(dir, "*"))
	committed, _ := filepath.Glob("*.o")
	if err != nil || len(made) == 0 || len(made) != len(committed) {
		t.Fatalf("made %v (%v), want %v", made, err, committed)
	}

	for _, file := range made {
		want := filetest.Read(t, file)
		got := filetest.Read(t, filepath.Base(file))
		if !bytes.Equal(got, want) {
			t.Errorf("%s is not what its source gives: run go generate ./bpf", filepath.Base(file))
		}
	}
}

func TestSourceIsFormatted(t *testing.T) {
	nettest.NeedProgram(t, "clang-format-"+ClangVersion)
	args := append([]string{"--dry-run", "-Werror"}, sources(t)...)
	if out, err := exec.Command("clang-format-"+ClangVersion,
		args...).CombinedOutput(); err != nil {
		t.Errorf("clang-format: %v\n%s", err, out)
	}
}

// sources returns the C files of the programs.
func sources(t *testing.T) []string {
	t.Helper()
	var files []string
	for _, pattern := range []string{"progs/*.c", "lib/*/*.h", "include/*.h", "include/asm/*.h"} {
		match, err := filepath.Glob(pattern)
		if err != nil || len(match) == 0 {
			t.Fatalf("%s: %v, %v", pattern, match, err)
		}
		files = append(files, match...)
	}
	return files
}
