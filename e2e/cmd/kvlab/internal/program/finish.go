package program

import (
	"errors"
	"fmt"
	"io"

	"github.com/kubeveil/kubeveil/pkg/bench/report"
)

// Finish writes result.json, report.html and report.md into folder and shows the report. The error
// names each gate that was missed and each attempt that got through.
func Finish(folder string, rep *report.Report, out io.Writer) error {
	if err := errors.Join(rep.WriteAll(folder), rep.Terminal(out)); err != nil {
		return err
	}
	var wrong []error
	missed := rep.Result.Missed()
	for _, g := range missed {
		wrong = append(wrong, fmt.Errorf("  %s: want %s, got %s", g.Name, g.Want, g.Got))
	}
	for _, r := range rep.Refused {
		if !r.OK {
			wrong = append(wrong, fmt.Errorf("  %s: want %s, got %s", r.What, r.Want, r.Got))
		}
	}
	if len(wrong) == 0 {
		return nil
	}
	what := fmt.Sprintf("%d of %d gates missed", len(missed), rep.Result.Judged())
	if len(rep.Refused) > 0 {
		what += fmt.Sprintf(", %d of %d attempts got through", len(wrong)-len(missed),
			len(rep.Refused))
	}
	return fmt.Errorf("%s:\n%w", what, errors.Join(wrong...))
}
