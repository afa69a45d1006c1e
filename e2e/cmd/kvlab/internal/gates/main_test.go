package gates

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/bench"
)

func TestMain(m *testing.M) { os.Exit(nettest.Run(m)) }

func TestRun(t *testing.T) {
	for name, tt := range map[string]struct {
		suite   string
		change  func(*bench.Result)
		wantErr string
		want    string
	}{
		"a suite with gates of its own": {"demo", func(r *bench.Result) {
			r.Gates = []bench.Gate{{Name: "g", Want: "1", Got: "1", OK: true}}
		}, "", "its own gates"},
		"one of those missed": {"bench-lab", func(r *bench.Result) {
			r.Gates = []bench.Gate{{Name: "g", Want: "1", Got: "2"}}
		}, "1 of 1 gates missed", "✗"},
		"a suite of the file, not run": {"bench-cluster",
			func(r *bench.Result) { r.Platform = bench.VM }, "gates missed", "not measured"},
		"a platform that has no profile": {"bench-cluster", func(*bench.Result) {}, "no profile",
			""},
		"plaintext was seen": {"e2e", func(r *bench.Result) {
			r.Tests.Passed, r.Leaks = 1, &bench.Leaks{Frames: 10, Plaintext: 3, ControlPlaintext: 1}
		}, "1 of 1 gates missed", "3 of 10 frames"},
		"nothing was run": {"e2e", func(*bench.Result) {}, "nothing was judged", ""},
		"a test that failed": {"e2e", func(r *bench.Result) { r.Tests.Failed = 1 },
			"1 tests failed", "1 failed"},
		"a failure that the suite knows": {"conformance", func(r *bench.Result) {
			r.Tests.Passed, r.Tests.Failed, r.Gates = 1, 1, []bench.Gate{bench.Unexplained(0)}
		}, "", "1 passed, 1 failed"},
		"one that it does not": {"conformance", func(r *bench.Result) {
			r.Tests.Passed, r.Tests.Failed, r.Gates = 1, 2, []bench.Gate{bench.Unexplained(1)}
		}, "1 of 1 gates missed, 2 tests failed", "✗"},
		"a suite of the file does not know its failures": {"bench-cluster", func(r *bench.Result) {
			r.Platform, r.Tests.Failed, r.Gates = bench.VM, 1, []bench.Gate{bench.Unexplained(0)}
		}, "1 tests failed", ""},
		"gates in the result do not loose": {"bench-cluster", func(r *bench.Result) {
			r.Platform, r.Gates = bench.VM, []bench.Gate{{Name: "g", Want: "1", Got: "1", OK: true}}
		}, "gates missed", ""},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			r, err := bench.New(bench.Namespaces, dir)
			errtest.Must(t, err)

			tt.change(r)
			errtest.Must(t, r.Write(filepath.Join(dir, tt.suite, "result.json")))

			var out bytes.Buffer
			err = run(dir, &out)
			if (err == nil) != (tt.wantErr == "") ||
				err != nil && !strings.Contains(err.Error(), tt.wantErr) {
				t.Errorf("error %v, want %q", err, tt.wantErr)
			}
			if !strings.Contains(out.String(), tt.want) {
				t.Errorf("output without %q:\n%s", tt.want, &out)
			}
		})
	}

	if err := run(t.TempDir(), &bytes.Buffer{}); err == nil {
		t.Error("no result gave no error")
	}
}
