package program

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/kubeveil/kubeveil/e2e/lab/buildtree"
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

// Measure runs measure with the root of the repository and an empty folder for results, and
// finishes the report in that folder. A run that was cut short has a report and an error.
func Measure(out string, measure func(root, folder string) (*report.Report, error)) error {
	root, err := buildtree.Root()
	if err != nil {
		return err
	}
	folder, err := Folder(out)
	if err != nil {
		return err
	}
	rep, err := measure(root, folder)
	if rep == nil {
		return err
	}
	return errors.Join(err, Finish(folder, rep, os.Stdout))
}

// Show is Measure for a demonstration. If there is a report, it ends with a line that names the
// page and what that shows.
func Show(out, shows string, progress func(format string, args ...any),
	measure func(root, folder string) (*report.Report, error)) error {
	page := ""
	err := Measure(out, func(root, folder string) (*report.Report, error) {
		rep, err := measure(root, folder)
		if rep != nil {
			page = filepath.Join(folder, "report.html")
		}
		return rep, err
	})
	if page != "" {
		progress("open %s in a browser: it shows %s", page, shows)
	}
	return err
}

// Log returns a log in a file of a folder of results, and the function that closes it.
func Log(folder, name string) (log *slog.Logger, closeLog func(), err error) {
	file, err := os.Create(filepath.Join(folder, name))
	if err != nil {
		return nil, nil, err
	}
	return slog.New(slog.NewTextHandler(file, nil)), func() { file.Close() }, nil
}
