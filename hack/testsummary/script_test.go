package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kubeveil/kubeveil/internal/filetest"
)

// fakeGo passes every test of the lab; the handling of the others, which run with -race, is in
// $UNIT.
const fakeGo = `#!/bin/sh
case "$1 $*" in
list*) printf 'x/a\nx/e2e/node/network\n' ;;
build*) mkdir -p out/bin && printf '#!/bin/sh\ncat >out/events; echo x >"$2"\n' >out/bin/testsummary && chmod +x out/bin/testsummary ;;
*-race*) eval "$UNIT" ;;
test*) echo '{"Action":"pass","Package":"x/e2e/node/network","Test":"TestA"}' ;;
esac
`

// hack/test.sh fails with any go test that does, also when the summary sees nothing wrong.
func TestScriptKeepsTheStatusOfGoTest(t *testing.T) {
	script := filetest.Read(t, "../test.sh")

	for name, tt := range map[string]struct {
		unit string
		fine bool
	}{
		"all pass":              {`echo '{"Action":"pass","Package":"x/a","Test":"TestA"}'`, true},
		"go test did not begin": {"echo 'go: -race requires cgo' >&2; exit 2", false},
		"go test was killed in " +
			"the middle": {`echo '{"Action":"run","Package":"x/a","Test":"TestA"}'; kill -9 $$`,
			false},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			for file, text := range map[string]string{"hack/test.sh": string(script),
				"path/go": fakeGo, "out/test/result.json": "{}"} {
				path := filepath.Join(dir, file)
				if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
					t.Fatal(err)
				}
				filetest.Write(t, path, []byte(text), 0o755)
			}

			cmd := exec.Command(filepath.Join(dir, "hack/test.sh"))
			cmd.Env = append(os.Environ(), "PATH="+filepath.Join(dir, "path")+":"+os.Getenv("PATH"),
				"UNIT="+tt.unit, "KUBEVEIL_LAB_NO_BUILD=1")
			out, err := cmd.CombinedOutput()
			if (err == nil) != tt.fine {
				t.Errorf("ended with %v: %s", err, out)
			}
			if said := strings.Contains(string(out), "go test ended with status"); said == tt.fine {
				t.Errorf("it says %s", out)
			}

			// `make gates` reads every */result.json as a result of the whole schema, which this is
			// not.
			if results, _ := filepath.Glob(filepath.Join(dir, "out/*/result.json")); len(
				results) > 0 {
				t.Errorf("it leaves %q", results)
			}

			events, err := os.ReadFile(filepath.Join(dir, "out/events"))
			if err != nil || !strings.Contains(string(events), "x/e2e/node/network") {
				t.Errorf("the lab did not run: %q, %v", events, err)
			}
		})
	}
}
