package bench

import (
	"bytes"
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kubeveil/kubeveil/cmd/veilctl/internal/verb"
	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/pkg/bench"
	"github.com/kubeveil/kubeveil/pkg/bench/report"
	"github.com/kubeveil/kubeveil/pkg/version"
)

func TestFinishOfAMeasurement(t *testing.T) {
	left := errors.New("namespace kubeveil-bench-x could not be removed")
	missed := []bench.Gate{{Name: "pod_tcp_1", Want: "ratio ≥ 0.970", Got: "0.500"}}
	for name, tt := range map[string]struct {
		gates []bench.Gate
		err   error
		want  error
	}{
		"all is well":                       {},
		"a gate was missed":                 {gates: missed, want: verb.ErrWrong},
		"something was left":                {err: left, want: left},
		"a gate was missed and more failed": {gates: missed, err: left, want: left},
	} {
		t.Run(name, func(t *testing.T) {
			// The test runs in a git tree, whose commit differs from the program's commit.
			result, err := bench.New(bench.VM, ".")
			errtest.Must(t, err)

			result.Gates = tt.gates
			m := measuring{out: filepath.Join(t.TempDir(), "bench")}
			var out bytes.Buffer
			err = m.finish(verb.Call{Out: &out}, &report.Report{Title: "t", Result: result}, tt.err)
			if !errors.Is(err, tt.want) || errors.Is(tt.want, left) &&
				errors.Is(err, verb.ErrWrong) {
				t.Errorf("error %v, want %v alone", err, tt.want)
			}
			if status := verb.ExitStatus(err); (status == verb.ExitOK) != (tt.want == nil) ||
				tt.want != nil && status != verb.ExitWrong {
				t.Errorf("status %d", status)
			}
			if !strings.Contains(out.String(), "written to "+m.out) {
				t.Errorf("output %q", &out)
			}

			written, err := bench.Read(filepath.Join(m.out, "result.json"))
			errtest.Must(t, err)
			if written.Commit != version.String() {
				t.Errorf("commit %q, want this program's, %q", written.Commit, version.String())
			}
		})
	}
}
