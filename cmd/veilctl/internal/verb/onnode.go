package verb

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/remote"
)

// OnNode makes cmd a verb for the veild of this node, or of others. run gets the answer of this
// node's veild by its socket. With --node or --cluster, the same command line runs in the pod of
// each veild, by the exec that status uses.
func OnNode(cmd *cobra.Command, run func(c Call, socket string) error) *cobra.Command {
	return onNode(&reach{cmd: cmd}, run)
}

// OnNodeLines is OnNode for a verb whose -o json prints objects, one per line. Lines of other nodes
// begin with the field node. If the verb has a flag --follow that is set, lines are printed as they
// come.
func OnNodeLines(cmd *cobra.Command, run func(c Call, socket string) error) *cobra.Command {
	return onNode(&reach{cmd: cmd, lines: true}, run)
}

// NodesOf returns the nodes that can answer for the arguments of a verb.
type NodesOf func(ctx context.Context, k *remote.Cluster, args []string) ([]string, error)

// OnNodesOf is OnNode for a verb that has an answer on some nodes only: --cluster shows these. If
// nodes returns none, it shows all.
func OnNodesOf(cmd *cobra.Command, nodes NodesOf,
	run func(c Call, socket string) error) *cobra.Command {
	return onNode(&reach{cmd: cmd, nodes: nodes}, run)
}

func onNode(r *reach, run func(c Call, socket string) error) *cobra.Command {
	cmd := r.cmd
	socket := SocketFlag(cmd)
	flags := cmd.Flags()
	flags.StringVar(&r.node, "node", "", "show this `node` of a cluster, by a kubeconfig")
	flags.BoolVar(&r.all, "cluster", false, "show each node of a cluster, by a kubeconfig")
	r.access.Register(flags)
	complete(cmd, "node", r.completeNodes)
	untilStdinEnds := flags.Bool(withStdin, false, "end when standard input does")
	flags.Lookup(withStdin).Hidden = true

	return Reporting(cmd, func(c Call) error {
		if r.node != "" || r.all || r.access.Given() {
			return r.ask(c)
		}
		if *untilStdinEnds {
			c.Ctx = untilEnd(c.Ctx, cmd.InOrStdin())
		}
		return r.hint(run(c, *socket))
	})
}

// reach are the flags that name other nodes than this one.
type reach struct {
	cmd    *cobra.Command
	nodes  NodesOf // nil means all nodes
	lines  bool    // -o json prints lines
	access remote.Access
	node   string
	all    bool
}

// hint adds to an error on a machine without veild how to reach others.
func (r *reach) hint(err error) error {
	if errors.Is(err, ErrNoDaemon) && errors.Is(err, fs.ErrNotExist) &&
		!r.cmd.Flags().Changed("socket") {
		return fmt.Errorf("%w; for other nodes write --node NAME or --cluster", err)
	}
	return err
}

func (r *reach) check() error {
	switch {
	case r.node != "" && r.all:
		return fmt.Errorf("give --node or --cluster, not both: %w", ErrUsage)
	case r.cmd.Flags().Changed("socket"):
		return fmt.Errorf("--socket is for the veild of this node: leave it out with --node, "+
			"--cluster, --kubeconfig and --context: %w", ErrUsage)
	}
	return nil
}

// ask runs the verb in the pods of other nodes, and prints their answers.
func (r *reach) ask(c Call) error {
	if err := r.check(); err != nil {
		return err
	}
	k, err := r.access.Open()
	if err != nil {
		return err
	}
	pods, err := k.VeildPods(c.Ctx)
	if err != nil {
		return err
	}

	nodes, err := r.selected(c, k, slices.Sorted(maps.Keys(pods)))
	if err != nil {
		return err
	}

	follow := r.follows()
	f := fleet{pods: pods, args: r.commandLine(c, follow), json: c.JSON, lines: r.lines,
		exec: k.ExecVeilctl, stream: k.ExecVeilctlTo}
	switch {
	case follow:
		return f.follow(c, nodes)
	case r.node != "":
		return f.one(c, r.node)
	}
	return f.all(c, nodes)
}

// follows reports whether the verb prints lines until it is interrupted.
func (r *reach) follows() bool {
	follow := r.cmd.Flags().Lookup("follow")
	return r.lines && follow != nil && follow.Value.String() == "true"
}

// selected returns the nodes to ask, of all nodes that there are.
func (r *reach) selected(c Call, k *remote.Cluster, all []string) ([]string, error) {
	if r.node != "" {
		if !slices.Contains(all, r.node) {
			return nil, fmt.Errorf("no Linux node %q in %s: it has %s", r.node, k.Server, Some(all))
		}
		return []string{r.node}, nil
	}
	if r.nodes == nil {
		return all, nil
	}
	nodes, err := r.nodes(c.Ctx, k, c.Args)
	if err != nil || len(nodes) == 0 {
		return all, err
	}
	slices.Sort(nodes)
	return slices.Compact(nodes), nil
}

// commandLine returns the arguments of a veilctl on another node: those of this one, for the node's
// own socket.
func (r *reach) commandLine(c Call, follow bool) []string {
	own := []string{"node", "cluster", "kubeconfig", "context", "output"}
	args := strings.Fields(r.cmd.CommandPath())[1:]
	r.cmd.Flags().Visit(func(f *pflag.Flag) {
		list, isList := f.Value.(pflag.SliceValue)
		switch {
		case slices.Contains(own, f.Name):
		case isList:
			for _, value := range list.GetSlice() {
				args = append(args, "--"+f.Name+"="+value)
			}
		default:
			args = append(args, "--"+f.Name+"="+f.Value.String())
		}
	})

	args = append(args, "--socket", abi.AdminSocket)
	if c.JSON {
		args = append(args, "-o", "json")
	}
	if follow {
		args = append(args, "--"+withStdin)
	}
	if len(c.Args) > 0 {
		args = append(append(args, "--"), c.Args...)
	}
	return args
}

// completeNodes completes the names of the nodes.
func (r *reach) completeNodes(cmd *cobra.Command, _ []string, _ string) ([]string,
	cobra.ShellCompDirective) {
	ctx, stop := context.WithTimeout(cmd.Context(), namesLimit)
	defer stop()
	k, err := r.access.Open()
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	pods, err := k.VeildPods(ctx)
	if err != nil {
		cobra.CompDebugln(err.Error(), false)
	}
	return slices.Sorted(maps.Keys(pods)), cobra.ShellCompDirectiveNoFileComp
}

// Some returns names for a message: all of a few, else the first ones and how many there are more.
func Some(names []string) string {
	const shown = 20
	if len(names) > shown {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:shown], ", "), len(names)-shown)
	}
	return OrDash(strings.Join(names, ", "))
}
