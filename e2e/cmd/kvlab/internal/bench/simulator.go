package bench

import (
	"time"

	"github.com/spf13/cobra"

	"github.com/kubeveil/kubeveil/e2e/bench/simulator"
	"github.com/kubeveil/kubeveil/e2e/cmd/kvlab/internal/program"
	"github.com/kubeveil/kubeveil/pkg/bench/suite"
)

const simulatorUsage = `Show that a node follows a large cluster: a complete veild beside a real API server with thousands
of Nodes, VeilNodes and Services. Each part is a scenario, which ends when the kernel has exactly
what the API server has, and when the node is idle. Needs root and make kubernetes.

Usage: kvlab bench simulator [flags]

Examples:
  kvlab bench simulator                                  10,000 nodes, a million endpoints
  kvlab bench simulator --nodes 1000 --churn 30s --settle 5s --idle 20s --parts cold,churn,kill

Flags:
`

func simulatorCommand() *cobra.Command {
	o := simulator.RunConfig{Choice: suite.Choice{Rounds: 1, Limit: 2 * time.Hour,
		Parts: simulator.Parts()}}
	b := program.NewBench("simulator", simulatorUsage, &o.Choice)
	b.Flags.IntVar(&o.Nodes, "nodes", 10_000, "`number` of nodes, and of services")
	b.Flags.DurationVar(&o.Churn, "churn", 10*time.Minute, "`duration` of part churn")
	b.Flags.DurationVar(&o.Settle, "settle", time.Minute, "`pause` before the node must be idle")
	b.Flags.DurationVar(&o.Idle, "idle", time.Minute, "`duration` for which the node must be idle")

	return program.Suite(b, "Show that a node follows a large cluster in all of its life", &o,
		simulator.Run)
}
