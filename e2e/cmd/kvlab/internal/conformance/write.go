package conformance

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/kubeveil/kubeveil/e2e/cmd/kvlab/internal/program"
	"github.com/kubeveil/kubeveil/e2e/conformance"
	"github.com/kubeveil/kubeveil/e2e/conformance/upstream"
	"github.com/kubeveil/kubeveil/pkg/bench"
)

// write writes the three files, prints where they are, and returns program.ErrFailed when a gate of
// the result was missed.
func write(dir, root, platform string, report *conformance.Report) error {
	result, err := bench.New(platform, root)
	if err != nil {
		return err
	}

	result.Started = report.Started.UTC().Truncate(time.Second)
	report.Result(result)
	path := filepath.Join(dir, "result.json")
	if err := result.Write(path); err != nil {
		return err
	}
	if err := writeTexts(dir, result, report); err != nil {
		return err
	}

	unexplained := report.Unexplained()
	for _, v := range unexplained {
		fmt.Printf("FAILED for no listed reason: %s\n    %s\n", v.Name, v.Message)
	}

	if result.Tests.Passed == 0 {
		fmt.Printf("NOTHING PASSED: %s has the reason of each spec; choose others by --focus and "+
			"--skip\n",
			filepath.Join(dir, "report.md"))
	}

	if report.Wire != nil {
		for _, e := range report.Wire.Examples {
			if e.Kind.Leak() {
				fmt.Printf("IN CLEAR: %s\n", e)
			}
		}
	}

	fmt.Printf("%d passed, %d failed (%d of them for no listed reason), %d skipped after %s, %s\n",
		result.Tests.Passed, result.Tests.Failed,
		len(unexplained), len(result.Tests.Skipped), report.Elapsed.Round(time.Second), path)
	missed := result.Missed()
	for _, g := range missed {
		fmt.Printf("MISSED %s: want %s, got %s\n", g.Name, g.Want, g.Got)
	}

	if len(missed) > 0 {
		return program.ErrFailed
	}
	return nil
}

func writeTexts(dir string, result *bench.Result, report *conformance.Report) error {
	junit, err := os.Create(filepath.Join(dir, "junit.xml"))
	if err != nil {
		return err
	}
	err = upstream.WriteJUnit(junit, "upstream conformance "+report.Group(), report.Outcomes())
	if err := errors.Join(err, junit.Close()); err != nil {
		return err
	}
	text, err := os.Create(filepath.Join(dir, "report.md"))
	if err != nil {
		return err
	}
	return errors.Join(report.WriteMarkdown(text,
		fmt.Sprintf("Platform %s, %d cores, commit %s", result.Platform, result.CPUs,
			result.Commit)), text.Close())
}
