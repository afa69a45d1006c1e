package bench

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/kubeveil/kubeveil/e2e/bench/policy"
	"github.com/kubeveil/kubeveil/e2e/cmd/kvlab/internal/program"
	"github.com/kubeveil/kubeveil/e2e/vm"
	"github.com/kubeveil/kubeveil/pkg/bench/report"
	"github.com/kubeveil/kubeveil/pkg/bench/suite"
)

const policyUsage = `Measure the cost of NetworkPolicy on a node: the time to plan 100,000 rules and
write them to the kernel, to change a pod or a policy, and to revoke connections; the additional
elements of an ADD; the additional CPU time of connections; the memory of veild with the largest
objects. Needs root. Part read needs the programs of make build. With --machine the suite runs on
the kernel of a virtual machine, which may be emulated: its times are reported and not judged.

Usage: kvlab bench policy [flags]

Examples:
  kvlab bench policy                             all parts
  kvlab bench policy --rounds 1 --parts change   a quick look at changes
  kvlab bench policy --parts connections         connections only
  kvlab bench policy --rounds 1 --parts read     the whole veild with objects of 1.4 MB
  kvlab bench policy --rounds 1 --machine        one tenant's policies on another Linux (KERNEL=6.12
                                                 make cluster-image; KUBEVEIL_VM_KERNEL=6.12)

Flags:
`

func policyCommand() *cobra.Command {
	c := suite.Choice{Rounds: 7, Limit: 25 * time.Minute, Parts: policy.Parts()}
	b := program.NewBench("policy", policyUsage, &c)
	machine := b.Flags.Bool("machine", false, "measure on a virtual machine (hack/vm/image.sh); "+
		"the default of --parts is "+tenantPart+" then")
	return b.Command("Measure the cost of NetworkPolicy on a node", func() (program.Run, error) {
		if *machine {
			if !b.Flags.Changed("parts") {
				c.Parts = []string{tenantPart}
			}
			if !b.Flags.Changed("limit") {
				c.Limit = 2 * time.Hour
			}
			if slices.Contains(c.Parts, "read") {
				return nil, errors.New("the machine lacks the programs that part read needs: leave " +
					"it out, or run without --machine")
			}
			return program.Within(c.Limit, func(ctx context.Context) error {
				return onMachine(ctx, b.Out, machineRun{verb: "policy", choice: c,
					before: "modprobe nf_conntrack", equip: noMore})
			}), policy.Check(c)
		}
		return b.Measure(func(ctx context.Context, _ string) (*report.Report, error) {
			return policy.Run(ctx, c)
		}), policy.Check(c)
	})
}

// tenantPart is the default part on a machine.
const tenantPart = "tenant"

// noMore is the equip of a run that needs only this program.
func noMore(context.Context, *vm.Machine) error { return nil }
