package bench

import (
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/kubeveil/kubeveil/cmd/veilctl/internal/verb"
	"github.com/kubeveil/kubeveil/pkg/bench/report"
	"github.com/kubeveil/kubeveil/pkg/remote"
	"github.com/kubeveil/kubeveil/pkg/version"
)

// measuring holds the options that all measurements of a cluster have: the cluster, the image of
// the tools, the folder of the report, and the length of a sample in seconds.
type measuring struct {
	access     remote.Access
	image, out string
	seconds    int
}

// register adds the flags. out is the default folder, and sample the help text of --seconds.
func (m *measuring) register(cmd *cobra.Command, out, sample string) {
	fs := cmd.Flags()
	m.access.Register(fs)
	fs.StringVar(&m.image, "image", remote.ToolsImage(), verb.ImageUsage)
	fs.StringVar(&m.out, "out", out, "`folder` for result.json and the reports")
	fs.IntVar(&m.seconds, "seconds", 10, sample)
}

// secondsFit reports whether the length of a sample is in the allowed range.
func (m *measuring) secondsFit() bool { return m.seconds >= 1 && m.seconds <= 600 }

// run connects to the cluster, measures it, and writes and prints the report, even if measure
// returns an error beside the report. It returns the error of measure, or verb.ErrWrong if a gate
// was missed.
func (m *measuring) run(c verb.Call, measure func(k *remote.Cluster,
	progress func(format string, args ...any)) (*report.Report, error)) error {
	began := time.Now()
	k, err := remote.Connect(c.Ctx, m.access, remote.ConnectConfig{Image: m.image})
	if err != nil {
		return err
	}
	rep, err := measure(k, func(format string, args ...any) {
		fmt.Fprintf(c.Progress, "[%5.0fs] %s\n", time.Since(began).Seconds(),
			fmt.Sprintf(format, args...))
	})
	if rep == nil {
		return err
	}
	return m.finish(c, rep, err)
}

// finish writes and prints the report of a measurement. err is the error of the measurement;
// finish returns it, so that the output does not hide it. Otherwise it returns verb.ErrWrong if a
// gate was missed.
func (m *measuring) finish(c verb.Call, rep *report.Report, err error) error {
	// Record the version of this program, not the commit of the folder where it was started.
	rep.Result.Commit = version.String()
	if failed := errors.Join(m.write(c, rep), err); failed != nil {
		return failed
	}
	if len(rep.Result.Missed()) > 0 {
		return verb.ErrWrong
	}
	return nil
}

func (m *measuring) write(c verb.Call, rep *report.Report) error {
	if err := errors.Join(os.MkdirAll(m.out, 0o755), rep.WriteAll(m.out)); err != nil {
		return err
	}
	if c.JSON {
		return verb.PrintJSON(c.Out, rep.Result)
	}
	err := rep.Terminal(c.Out)
	fmt.Fprintf(c.Out, "written to %s\n", m.out)
	return err
}
