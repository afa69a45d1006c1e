// Package benchpolicy runs e2e/bench/policy in network namespaces of this machine. It writes
// result.json, report.html and report.md into --out. Start reading at Command.
package benchpolicy

import (
	"context"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/kubeveil/kubeveil/e2e/bench/policy"
	"github.com/kubeveil/kubeveil/e2e/cmd/kvlab/internal/program"
	"github.com/kubeveil/kubeveil/internal/commandline"
	"github.com/kubeveil/kubeveil/pkg/bench/report"
	"github.com/kubeveil/kubeveil/pkg/bench/suite"
)

const usage = `Measure what NetworkPolicy costs a node: to plan 100,000 rules and write them to the
kernel, to change a pod or a policy, to revoke connections, what an ADD writes more, what
connections cost more, and the memory of veild beside the largest objects. Needs root, and for part
read the programs and tools of make build.

Usage: kvlab bench policy [flags]

Examples:
  kvlab bench policy                             all of it
  kvlab bench policy --rounds 1 --parts change   a look at changes
  kvlab bench policy --parts connections         connections only
  kvlab bench policy --rounds 1 --parts read     the whole veild beside objects of 1.4 MB

Flags:
`

// Command returns the verb.
func Command() *cobra.Command {
	flags := commandline.New("kvlab bench policy")
	out := flags.String("out", "out/bench-policy",
		"`folder` for result.json, report.html and report.md; emptied first")
	limit := flags.Duration("limit", 25*time.Minute, "ends a run that hangs")
	rounds := flags.Int("rounds", 7, "how often each quantity is measured")
	parts := flags.String("parts", strings.Join(policy.Parts(), ","), "`parts` to measure")
	return program.Command("Measure what NetworkPolicy costs a node",
		flags, usage, func() (program.Run, error) {
			o := policy.Options{Choice: suite.Choice{Rounds: *rounds, Limit: *limit,
				Parts: strings.Split(*parts, ","), Progress: program.Progress(os.Stdout)}}
			if err := o.Check(); err != nil {
				return nil, err
			}
			return func(ctx context.Context) error {
				return program.Measure(*out, func(root, _ string) (*report.Report, error) {
					o.Root = root
					return policy.Run(ctx, o)
				})
			}, nil
		})
}
