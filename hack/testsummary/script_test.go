package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/filetest"
)

// fakeGo passes every test of the lab and of b, which starts no goroutine. The handling of the
// others, which run with -race, is in $UNIT. What it builds is the real testsummary, which keeps
// the events that it reads.
const fakeGo = `#!/bin/sh
case "$1 $*" in
"list list -f "*" x/a") echo a ;;
list*-f*) printf 'x/a a\nx/b b\nx/e2e/node/network n\n' ;;
list*) printf 'x/a\nx/b\nx/e2e/node/network\n' ;;
build*) mkdir -p out/bin && cp path/keep out/bin/testsummary ;;
*-race*) eval "$UNIT" ;;
*x/b*) echo '{"Action":"pass","Package":"x/b","Test":"TestA"}' ;;
test*) echo '{"Action":"pass","Package":"x/e2e/node/network","Test":"TestA"}' ;;
esac
`

const keepEvents = `#!/bin/sh
tee out/events | path/testsummary "$@"
`

// failedOnce fails TestA in the first run and passes it in the second.
const failedOnce = `if [ -e out/once ]; then
	echo '{"Action":"pass","Package":"x/a","Test":"TestA"}'; exit
fi
touch out/once
echo '{"Action":"fail","Package":"x/a","Test":"TestA"}'
echo '{"Action":"fail","Package":"x/a"}'; exit 1`

// hack/test.sh fails if a go test fails, even if no package failed. It runs a failed test again.
func TestScriptKeepsTheStatusOfGoTest(t *testing.T) {
	script := filetest.Read(t, "../test.sh")
	program := filepath.Join(t.TempDir(), "testsummary")
	if out, err := exec.Command("go", "build", "-ldflags=-s -w", "-o", program,
		".").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}

	for name, tt := range map[string]struct {
		unit string
		fine bool
		says string
	}{
		"all pass": {`echo '{"Action":"pass","Package":"x/a","Test":"TestA"}'`, true, "3 passed"},
		"go test did not begin": {"echo 'go: -race requires cgo' >&2; exit 2", false,
			"go test ended with status 2"},
		"go test was killed in the middle": {
			`echo '{"Action":"run","Package":"x/a","Test":"TestA"}'; kill -9 $$`, false,
			"go test ended with status 137"},
		"a test failed once": {failedOnce, true, "flaky x/a.TestA"},
		"a test failed twice": {`echo '{"Action":"fail","Package":"x/a","Test":"TestA"}'
echo '{"Action":"fail","Package":"x/a"}'; exit 1`, false, "x/a.TestA failed twice"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			for file, text := range map[string]string{"hack/test.sh": string(script),
				"path/go": fakeGo, "path/keep": keepEvents, "out/test/result.json": "{}",
				"a/a.go": "package a\n\nfunc A() { go func() {}() }\n", "b/b.go": "package b\n"} {
				path := filepath.Join(dir, file)
				errtest.Must(t, os.MkdirAll(filepath.Dir(path), 0o755))
				filetest.Write(t, path, []byte(text), 0o755)
			}
			errtest.Must(t, os.Symlink(program, filepath.Join(dir, "path/testsummary")))

			cmd := exec.Command(filepath.Join(dir, "hack/test.sh"))
			cmd.Env = append(os.Environ(), "PATH="+filepath.Join(dir, "path")+":"+os.Getenv("PATH"),
				"UNIT="+tt.unit, "KUBEVEIL_LAB_NO_BUILD=1")
			out, err := cmd.CombinedOutput()
			if (err == nil) != tt.fine {
				t.Errorf("ended with %v: %s", err, out)
			}
			for _, want := range []string{tt.says, "CPU time of the run: 0m"} {
				if !strings.Contains(string(out), want) {
					t.Errorf("want %q in %s", want, out)
				}
			}

			// `make gates` reads every */result.json as a result of the whole schema, which this is
			// not.
			if results, _ := filepath.Glob(filepath.Join(dir, "out/*/result.json")); len(
				results) > 0 {
				t.Errorf("it leaves %q", results)
			}

			events, err := os.ReadFile(filepath.Join(dir, "out/events"))
			if err != nil || !strings.Contains(string(events), "x/e2e/node/network") ||
				!strings.Contains(string(events), "x/b") {
				t.Errorf("not all packages ran: %q, %v", events, err)
			}
		})
	}
}
