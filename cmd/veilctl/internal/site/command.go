package site

import (
	"time"

	"github.com/spf13/cobra"

	"github.com/kubeveil/kubeveil/cmd/veilctl/internal/site/path"
	"github.com/kubeveil/kubeveil/cmd/veilctl/internal/verb"
	"github.com/kubeveil/kubeveil/pkg/remote"
)

// Command returns the parent of the verbs about links with other clusters.
func Command() *cobra.Command {
	cmd := &cobra.Command{
		Use: "site", Short: "Show the links of a cluster with others, make and remove them",
		Example: "  veilctl site status --context production",
	}
	cmd.AddCommand(siteStatus(), siteLink(), siteUnlink(), path.Verb())
	verb.Choice(cmd)
	return cmd
}

// ends are the flags that select the two clusters of a link.
type ends struct{ here, there remote.Access }

func (e *ends) register(cmd *cobra.Command) {
	e.here.Register(cmd.Flags())
	cmd.Flags().StringVar(&e.there.Kubeconfig, "from", "",
		"kubeconfig `file` of an administrator of the other cluster")
	cmd.Flags().StringVar(&e.there.Context, "from-context", "",
		"`name` of a context in it (default: the current one)")
}

func siteLink() *cobra.Command {
	cmd := &cobra.Command{
		Use: "link", Short: "Let this cluster read what another one exports to it",
		Long: `It links one direction: run it once in each. First write the ranges of the other
cluster into sites of the configuration, in both clusters, and install veil-site:
docs/how-to/sites.md. If an entry is missing, the error has the text to add.

It checks the ranges of both clusters, and by a temporary pod in each of them whether datagrams of
the tunnel's port and of which size arrive, both ways. These pods are on the host's network, with
NET_RAW, and use the image of veild. Then it makes an account in the other cluster that may read
one namespace, and writes a kubeconfig with its token into the Secret kube-system/veil-site of this
cluster, or into a file. Nothing is written before all checks have passed.

Run it again to renew the token. No connection is cut.`,
		Example: `veilctl site link --from kubeconfig-b
veilctl site link --from kubeconfig-b --server https://198.51.100.10:6443
veilctl site link --from kubeconfig-b --to-file veil-site-b.kubeconfig`,
	}
	f := &linkFlags{}
	fs := cmd.Flags()
	f.ends.register(cmd)
	fs.StringVar(&f.server, "server", "",
		"`url` at which nodes of this cluster reach the other\n"+
			"API server (default: as in the kubeconfig)")
	fs.StringVar(&f.file, "to-file", "",
		"new `file` for the credentials, instead of the Secret")
	fs.DurationVar(&f.duration, "token-duration", 90*24*time.Hour,
		"lifetime of the token;\nthe API server may shorten it")
	fs.BoolVar(&f.noPath, "skip-path", false,
		"do not start pods that check the path between nodes")
	fs.StringVar(&f.nodes, "nodes", "",
		"a node of this cluster and one of the other, `A,B`,\n"+
			"between which to check (default: the first Ready ones)")
	fs.DurationVar(&f.timeout, "timeout", 5*time.Minute, "maximum time, without the removal")
	return verb.Reporting(cmd, f.run)
}

func siteUnlink() *cobra.Command {
	cmd := &cobra.Command{
		Use: "unlink SITE", Short: "Remove what link made, and what was mirrored",
		Long: `SITE is the name of the other cluster in sites of the configuration. First set reach:
none there, in both clusters. veil-site then deletes what it mirrored, and this verb waits for that.
If veil-site does not run any more, this verb deletes it.

With --from, it removes the account and its namespace in the other cluster, the credentials in both,
and what the other cluster mirrored from this one. Without, it cleans only this cluster, and names
what is left in the other.

The configuration stays as it is, so packets to the ranges of the site still leave no node in clear.
The output names these ranges.`,
		Example: `veilctl site unlink b --from kubeconfig-b
veilctl site unlink b --wait 0s`,
	}
	f := &unlinkFlags{}
	f.ends.register(cmd)
	verb.CompleteNames(cmd, 1, f.names)
	cmd.Flags().DurationVar(&f.wait, "wait", 2*time.Minute,
		"how long to wait until veil-site has deleted what it\nmirrored")
	return verb.Reporting(cmd, f.run)
}

func siteStatus() *cobra.Command {
	cmd := &cobra.Command{
		Use: "status", Short: "Show the sites of a cluster, and what is wrong with their links",
		Long: `NODES counts the nodes of the site that are mirrored here, and UP those among them that
answer each veild here, or were sent nothing. IMPORTS and EXPORTS count services. REFUSED counts
nodes, services and endpoints of the site that are outside of its ranges or beyond a bound.

Below stand exports and imports with a problem, packets that were dropped because no export opens
their destination (since each veild started), and each problem with what to do.

It needs the rights to list sitelinks, sitenodes, serviceexports, serviceimports and nodes, and to
exec in pods of kube-system.`,
		Example: `veilctl site status
veilctl site status --context production -o json | jq '.sites[] | select(.well | not)'`,
	}
	var access remote.Access
	access.Register(cmd.Flags())
	return verb.Reporting(cmd, func(c verb.Call) error {
		k, err := access.Open()
		if err != nil {
			return err
		}
		return showStatus(c, k)
	})
}
