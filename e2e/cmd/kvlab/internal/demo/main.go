// Package demo runs e2e/demo in namespaces of this machine. It writes report.html, report.md and
// result.json into --out. The exit status is 1 if a promise did not hold. Start reading at Command.
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
behind Kubeveil. It takes about a minute.

Usage: kvlab demo [flags]

Examples:
  kvlab demo --out /tmp/demo   write report.html, report.md and result.json there
  kvlab demo --api             with an API server (of make kubernetes), services, a NetworkPolicy,
                               forged objects, and a service of another cluster

Flags:
`

// Command returns the verb.
func Command() *cobra.Command {
	flags := commandline.New("kvlab demo")
	out := flags.String("out", "out/demo",
		"`folder` for report.html, report.md and result.json; emptied first")
	api := flags.Bool("api", false,
		"give Kubeveil a real API server, services, a NetworkPolicy and a linked cluster; without "+
			"it nodes read snapshot files")
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
