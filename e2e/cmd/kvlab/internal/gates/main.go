// Package gates judges each result FOLDER/result.json below out/. It uses the limits of
// pkg/bench/gates.json if that file has the suite (the folder's name), and otherwise the gates in
// the result. The platform in the result selects the profile; no flag can loosen it.
//
//	gates [--in out]
//
// A failed test misses a gate. A suite that lists its known failures is judged by its own gates
// instead (bench.Unexplained).
//
// Exit status 0 means that all gates were kept. 1 means that a gate was missed, that a result is
// malformed, or that there is no result. 2 means a wrong command line.
package gates

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/kubeveil/kubeveil/e2e/cmd/kvlab/internal/program"
	"github.com/kubeveil/kubeveil/internal/commandline"
	"github.com/kubeveil/kubeveil/pkg/bench"
)

const usage = `Judge each result FOLDER/result.json below out/.

The limits come from pkg/bench/gates.json, in the profile for the result's platform. A suite that
is not in that file is judged by the gates in its result.

Usage: kvlab gates [flags]

Examples:
  kvlab gates                            judge all results below out/
  kvlab gates --in /tmp/from-the-cloud   judge results of another machine, one folder per suite:
                                         /tmp/from-the-cloud/bench-cluster/result.json

Flags:
`

// Command returns the verb.
func Command() *cobra.Command {
	flags := commandline.New("kvlab gates")
	in := flags.String("in", "out", "`folder` with a folder per suite")
	return program.Command("Judge the results below a folder",
		flags, usage, func() (program.Run, error) {
			return func(context.Context) error { return run(*in, os.Stdout) }, nil
		})
}

func run(in string, w io.Writer) error {
	paths, err := filepath.Glob(filepath.Join(in, "*", "result.json"))
	if err != nil {
		return err
	}
	if len(paths) == 0 {
		return fmt.Errorf("no result below %s: run a suite first, `make bench-cluster` "+
			"for instance", in)
	}
	t := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	var errs []error
	for _, path := range paths {
		errs = append(errs, judge(path, t))
	}
	return errors.Join(append(errs, t.Flush())...)
}

// judge prints the gates of one result. It returns an error if gates were missed or tests failed.
func judge(path string, w io.Writer) error {
	r, err := bench.Read(path)
	if err != nil {
		return err
	}

	suite := filepath.Base(filepath.Dir(path))
	gates, err := bench.Judge(r, suite)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	profile, err := bench.ProfileOf(suite, r.Platform)
	if err != nil {
		return err
	}
	if profile == "" {
		profile = "its own gates"
	}

	fmt.Fprintf(w, "\n%s\t\t%s, %s\tcommit %.12s\n", suite, r.Platform, profile, r.Commit)
	for _, g := range gates {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", g.Name, g.Mark(), g.Want, g.Got)
	}
	r.Gates = gates
	missed := len(r.Missed())

	failed, want := r.Tests.Failed, "0 failed"
	if bench.JudgesFailures(gates) {
		failed, want = 0, "see the gates"
	}
	if r.Tests.Passed+r.Tests.Failed > 0 {
		fmt.Fprintf(w, "tests\t\t%s\t%d passed, %d failed, %d skipped\n", want, r.Tests.Passed,
			r.Tests.Failed, len(r.Tests.Skipped))
	}
	if len(gates) == 0 && r.Tests.Passed+r.Tests.Failed == 0 {
		return fmt.Errorf("%s: it has no gate and no test: nothing was judged", path)
	}
	if missed > 0 || failed > 0 {
		return fmt.Errorf("%s: %d of %d gates missed, %d tests failed", suite, missed, r.Judged(),
			r.Tests.Failed)
	}

	return nil
}
