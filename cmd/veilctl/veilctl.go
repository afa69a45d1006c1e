package main

import (
	"github.com/spf13/cobra"

	"github.com/kubeveil/kubeveil/cmd/veilctl/internal/audit"
	"github.com/kubeveil/kubeveil/cmd/veilctl/internal/bench"
	"github.com/kubeveil/kubeveil/cmd/veilctl/internal/check"
	"github.com/kubeveil/kubeveil/cmd/veilctl/internal/cluster"
	"github.com/kubeveil/kubeveil/cmd/veilctl/internal/node"
	"github.com/kubeveil/kubeveil/cmd/veilctl/internal/policy"
	"github.com/kubeveil/kubeveil/cmd/veilctl/internal/site"
	"github.com/kubeveil/kubeveil/cmd/veilctl/internal/sysdump"
	"github.com/kubeveil/kubeveil/cmd/veilctl/internal/verb"
	"github.com/kubeveil/kubeveil/cmd/veilctl/internal/volume"
	"github.com/kubeveil/kubeveil/pkg/version"
)

// newVeilctl returns the program with all its verbs. Verbs about this node come first.
func newVeilctl() *cobra.Command {
	root := &cobra.Command{
		Use: "veilctl", Version: version.String(),
		Long: `Look at Kubeveil: on the node that veilctl runs on, and in a cluster of a kubeconfig.

Exit status: 0 all is well, 1 something is wrong with the node or the cluster, or the call failed,
2 the command line is wrong, 3 veild does not answer.`,
		Example: `  veilctl status
  source <(veilctl completion bash)     # needs Debian's bash-completion; zsh: the same with zsh
  veilctl completion fish | source`,
	}
	verb.Root(root)
	root.SetVersionTemplate("{{.Version}}\n")

	group := func(id, title string, verbs ...*cobra.Command) {
		root.AddGroup(&cobra.Group{ID: id, Title: title})
		for _, v := range verbs {
			v.GroupID = id
		}
		root.AddCommand(verbs...)
	}
	group("both", "This node, or a cluster:", cluster.Status(), node.Peers(), node.MTU(),
		node.Guard(), node.Drops(), node.Flows(), node.Service(), policy.Command())
	group("node", "This node:", node.Leakcheck(), node.Host(), node.Cleanup())
	group("cluster", "A cluster, by a kubeconfig:", check.Check(), cluster.Connectivity(),
		site.Command(), audit.Command(), bench.Command(), sysdump.Command(), volume.Command())
	root.AddCommand(cluster.Version())
	return root
}
