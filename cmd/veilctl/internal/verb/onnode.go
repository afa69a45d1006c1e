package verb

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/remote"
	"github.com/kubeveil/kubeveil/pkg/telemetry/admin"
)

// OnNode completes cmd as a verb that prints an answer of veild. Without --node and --cluster, it
// calls run with the socket of this node's veild. With one of these flags, it runs the same command
// line in the pods of veild on other nodes.
func OnNode(cmd *cobra.Command, run func(c Call, socket string) error) *cobra.Command {
	return onNode(&reach{cmd: cmd}, run)
}

// OnNodeLines is OnNode for a verb whose -o json prints one object per line. Objects from other
// nodes begin with the field node. If the verb has a flag --follow and it is set, lines are printed
// as they arrive.
func OnNodeLines(cmd *cobra.Command, run func(c Call, socket string) error) *cobra.Command {
	return onNode(&reach{cmd: cmd, lines: true}, run)
}

// Input is an input of a verb that flags select, such as a file. On other nodes, veilctl gets the
// input on standard input instead of these flags.
type Input struct {
	Flags []string
	// Read returns the input, without newlines, on the machine of the user. The verb finds it in
	// Call.Input. open returns the cluster that the flags select. Nil without an error means that
	// there is no input.
	Read func(ctx context.Context, open func() (*remote.Cluster, error)) ([]byte, error)
}

// MaxInput bounds the bytes of an Input.
const MaxInput = admin.MaxPosted

// OnNodeWith is OnNode for a verb with an input.
func OnNodeWith(cmd *cobra.Command, in Input,
	run func(c Call, socket string) error) *cobra.Command {
	return onNode(&reach{cmd: cmd, input: in}, run)
}

// withInput is the hidden flag that makes a verb read its input from standard input.
const withInput = "with-input"

// readInput returns the input of the verb: the line that another veilctl wrote if passed is set,
// else what the flags select.
func (r *reach) readInput(ctx context.Context, passed bool) ([]byte, error) {
	if passed {
		return readLine(r.cmd.InOrStdin())
	}
	in, err := r.input.Read(ctx, r.access.Open)
	if err == nil && len(in) >= MaxInput {
		return nil, fmt.Errorf("%s: %d bytes are more than veild reads (%d MiB)",
			r.cmd.CommandPath(), len(in), MaxInput>>20)
	}
	return in, err
}

// readLine reads one line. It does not wait for the end of in, because the protocol of a command in
// a pod may not transmit the end.
func readLine(in io.Reader) ([]byte, error) {
	line, err := bufio.NewReader(io.LimitReader(in, MaxInput)).ReadBytes('\n')
	if err != nil {
		return nil, fmt.Errorf("read standard input: %w", err)
	}
	return bytes.TrimSuffix(line, []byte("\n")), nil
}

// OnNodeMerged is OnNodeWith for a verb that prints one result from the answers of one or several
// nodes. ask returns the answer of this node, which -o json prints. show prints the result for
// people; missing has an error for each node that did not answer.
func OnNodeMerged(cmd *cobra.Command, in Input, ask func(c Call, socket string) (any, error),
	show func(c Call, answers []Answer, missing []string) error) *cobra.Command {
	return onNode(&reach{cmd: cmd, input: in, merge: show}, func(c Call, socket string) error {
		v, err := ask(c, socket)
		if err != nil {
			return err
		}
		return c.Print(v, false, func() error {
			answer, err := json.Marshal(v)
			if err != nil {
				return err
			}
			return show(c, []Answer{{JSON: answer}}, nil)
		})
	})
}

// Answer is the JSON that a node answered. Node is empty for this node, whose name is in the JSON.
type Answer struct {
	Node string
	JSON json.RawMessage
}

// NodesOf returns the nodes that can answer a verb with these arguments.
type NodesOf func(ctx context.Context, k *remote.Cluster, args []string) ([]string, error)

// OnNodesOf is OnNode for a verb that only some nodes can answer. With --cluster, it runs on the
// nodes that nodes returns, or on all nodes if there are none.
func OnNodesOf(cmd *cobra.Command, nodes NodesOf,
	run func(c Call, socket string) error) *cobra.Command {
	return onNode(&reach{cmd: cmd, nodes: nodes}, run)
}

func onNode(r *reach, run func(c Call, socket string) error) *cobra.Command {
	cmd := r.cmd
	socket := SocketFlag(cmd)
	flags := cmd.Flags()
	flags.StringVar(&r.node, "node", "", "show this `node` of the kubeconfig's cluster")
	flags.BoolVar(&r.all, "cluster", false, "show each node of the kubeconfig's cluster")
	r.access.Register(flags)
	complete(cmd, "node", r.completeNodes)
	untilStdinEnds := flags.Bool(withStdin, false, "end when standard input does")
	flags.Lookup(withStdin).Hidden = true
	passed := new(bool)
	if r.input.Read != nil {
		flags.BoolVar(passed, withInput, false, "read one line of input that a veilctl wrote")
		flags.Lookup(withInput).Hidden = true
	}

	return Reporting(cmd, func(c Call) (err error) {
		if r.input.Read != nil {
			if c.Input, err = r.readInput(c.Ctx, *passed); err != nil {
				return err
			}
		}
		if r.node != "" || r.all || r.access.Given() {
			return r.ask(c)
		}
		if *untilStdinEnds {
			c.Ctx = untilEnd(c.Ctx, cmd.InOrStdin())
		}
		return r.hint(run(c, *socket))
	})
}

// reach holds how a verb runs on other nodes, and the flags that select them.
type reach struct {
	cmd    *cobra.Command
	nodes  NodesOf // nil means all nodes
	lines  bool    // -o json prints lines
	access remote.Access
	input  Input // the zero value if the verb has none
	// merge prints one result from all answers. Nil means that each answer is printed separately.
	merge func(c Call, answers []Answer, missing []string) error
	node  string
	all   bool
}

// hint adds to the error of a machine without veild how to run the verb on other nodes.
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
	exec := k.ExecVeilctl
	if len(c.Input) > 0 {
		exec = func(ctx context.Context, pod string, args ...string) ([]byte, error) {
			return k.ExecVeilctlWith(ctx, append(slices.Clone(c.Input), '\n'), pod, args...)
		}
	}
	shown := c
	c.JSON = c.JSON || r.merge != nil
	f := fleet{pods: pods, args: r.commandLine(c, follow), json: c.JSON, lines: r.lines,
		exec: exec, stream: k.ExecVeilctlTo, find: k.VeildPods,
		since: r.cmd.Flags().Lookup("since") != nil}
	switch {
	case follow:
		return f.follow(c, nodes)
	case r.merge != nil && !shown.JSON:
		return f.merged(shown, nodes, r.merge)
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

// selected returns the nodes on which to run the verb. all are the Linux nodes of the cluster.
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

// commandLine returns the arguments for veilctl on another node: the arguments of this call without
// the flags that select nodes, and with the node's own socket.
func (r *reach) commandLine(c Call, follow bool) []string {
	own := append([]string{"node", "cluster", "kubeconfig", "context", "output"}, r.input.Flags...)
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
	if len(c.Input) > 0 {
		args = append(args, "--"+withInput)
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

// Some joins names for a message. It names at most twenty and counts the others.
func Some(names []string) string {
	const shown = 20
	if len(names) > shown {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:shown], ", "), len(names)-shown)
	}
	return OrDash(strings.Join(names, ", "))
}
