package bench

import (
	"time"

	"github.com/spf13/cobra"

	"github.com/kubeveil/kubeveil/e2e/bench/scale"
	"github.com/kubeveil/kubeveil/e2e/cmd/kvlab/internal/program"
	"github.com/kubeveil/kubeveil/pkg/bench/suite"
)

const scaleUsage = `Measure how long a node takes from a list of services with up to a million
endpoints to a written table, beside a loop that reads a small message and updates a map for each
endpoint. The suite also measures CPU time, memory and the memory of the maps. With a real API
server it measures the same list beside a client that drops it (part server), and endpoints from
their writer to the table, beside the writer alone (part write). Needs root, and for these parts
make kubernetes.

Usage: kvlab bench scale [flags]

Examples:
  kvlab bench scale                                     all sizes, five rounds
  kvlab bench scale --sizes 100000 --rounds 1           a quick look
  kvlab bench scale --parts server,write --rounds 3     with a real API server
  kvlab bench scale --sizes 1000000 --profile out/prof  where the time of a million goes

Flags:
`

func scaleCommand() *cobra.Command {
	o := scale.RunConfig{Choice: suite.Choice{Rounds: 5, Limit: 75 * time.Minute,
		Parts: scale.Parts()}}
	b := program.NewBench("scale", scaleUsage, &o.Choice)
	b.Flags.IntSliceVar(&o.Sizes, "sizes", scale.Sizes, "`numbers` of endpoints")
	b.Flags.StringVar(&o.Profile, "profile", "",
		"`folder` for a CPU profile of our side of each measurement; empty means none")

	return program.Suite(b,
		"Measure a million endpoints from a list to the table, beside a plain loop", &o, scale.Run)
}
