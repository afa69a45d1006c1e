// Package demo runs e2e/demo in namespaces of this machine. It writes report.html, report.md and
// result.json into --out, and ends with status 1 when something was shown that must not be. Start
// reading at Command.
package demo

import (
	"context"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/kubeveil/kubeveil/e2e/cmd/kvlab/internal/program"
	"github.com/kubeveil/kubeveil/e2e/demo"
	"github.com/kubeveil/kubeveil/internal/commandline"
	"github.com/kubeveil/kubeveil/pkg/bench/report"
)

// limit bounds a run that hangs.
const limit = 10 * time.Minute

const usage = `Show the same pods and the same traffic on three nodes in namespaces, in clear and
behind Kubeveil, in about a minute.

Usage: kvlab demo [flags]

Example:
  kvlab demo --out /tmp/demo   report.html, report.md and result.json go there
  kvlab demo --api             with an API server, services, a NetworkPolicy and forged objects,
                               once make kubernetes has built it

Flags:
`

// Command returns the verb.
func Command() *cobra.Command {
	flags := commandline.New("kvlab demo")
	out := flags.String("out", "out/demo",
		"`folder` for report.html, report.md and result.json; emptied first")
	api := flags.Bool("api", false,
		"give Kubeveil a real API server, services and a NetworkPolicy; without it nodes read "+
			"snapshot files")
	return program.Command("Show the same traffic in clear and behind Kubeveil",
		flags, usage, func() (program.Run, error) {
			progress := program.Progress(os.Stdout)
			return program.Within(limit, func(ctx context.Context) error {
				return program.Show(*out, "the frames of both networks next to each other", progress,
					func(root, _ string) (*report.Report, error) {
						return demo.Run(ctx, root, *api, progress)
					})
			}), nil
		})
}
