package bench

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"github.com/kubeveil/kubeveil/e2e/bench/policy"
	"github.com/kubeveil/kubeveil/e2e/cmd/kvlab/internal/program"
	"github.com/kubeveil/kubeveil/pkg/bench/report"
	"github.com/kubeveil/kubeveil/pkg/bench/suite"
)

const policyUsage = `Measure the cost of NetworkPolicy on a node: the time to plan 100,000 rules and
write them to the kernel, to change a pod or a policy, and to revoke connections; the additional
elements of an ADD; the additional CPU time of connections; the memory of veild with the largest
objects. Needs root. Part read needs the programs of make build.

Usage: kvlab bench policy [flags]

Examples:
  kvlab bench policy                             all parts
  kvlab bench policy --rounds 1 --parts change   a quick look at changes
  kvlab bench policy --parts connections         connections only
  kvlab bench policy --rounds 1 --parts read     the whole veild with objects of 1.4 MB

Flags:
`

func policyCommand() *cobra.Command {
	c := suite.Choice{Rounds: 7, Limit: 25 * time.Minute, Parts: policy.Parts()}
	b := program.NewBench("policy", policyUsage, &c)
	return b.Command("Measure the cost of NetworkPolicy on a node", func() (program.Run, error) {
		return b.Measure(func(ctx context.Context, _ string) (*report.Report, error) {
			return policy.Run(ctx, c)
		}), policy.Check(c)
	})
}
