package main

import (
	"context"
	"fmt"
	"io"
	"runtime"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/kubeveil/kubeveil/internal/commandline"
	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/node"
	"github.com/kubeveil/kubeveil/pkg/version"
)

// call is one call of a verb.
type call struct {
	ctx context.Context
	// out is for the result, progress for messages meanwhile.
	out, progress io.Writer
	json          bool
	// args are the arguments that are not flags.
	args []string
}

// print writes v as JSON, or calls show to write it for people. It returns errWrong if wrong is
// set.
func (c call) print(v any, wrong bool, show func() error) error {
	if c.json {
		show = func() error { return printJSON(c.out, v) }
	}
	if err := show(); err != nil || !wrong {
		return err
	}
	return errWrong
}

// newVeilctl returns the program with all its verbs. Verbs about this node come first.
func newVeilctl() *cobra.Command {
	root := &cobra.Command{
		Use: "veilctl", Version: version.String(), SilenceErrors: true, SilenceUsage: true,
		Long: `Look at Kubeveil: on the node that veilctl runs on, and in a cluster of a kubeconfig.

Exit status: 0 all is well, 1 something is wrong with the node or the cluster, or the call failed,
2 the command line is wrong, 3 veild does not answer.`,
		Example: `  veilctl status
  source <(veilctl completion bash)     # needs Debian's bash-completion; zsh: the same with zsh
  veilctl completion fish | source`,
	}
	cobra.EnableCommandSorting = false
	choice(root)
	root.SetVersionTemplate("{{.Version}}\n")
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error {
		return fmt.Errorf("%w: %w", err, errUsage)
	})

	bench, service, volume := benchCommand(), &cobra.Command{
		Use: "service", Short: "Show services of this node, with serviceProxy ebpf",
		Example: "  veilctl service trace 10.96.0.10:53 --udp",
	}, &cobra.Command{
		Use: "volume", Short: "Show encrypted volumes of a cluster, and change them",
		Example: "  veilctl volume list --context production",
	}
	bench.AddCommand(benchStorageCommand())
	service.AddCommand(serviceListCommand(), serviceShowCommand(), serviceTrace())
	volume.AddCommand(volumeList(), volumeShow(), volumeRewrap(), volumeRecover(), volumeDestroy())
	choice(service)
	choice(volume)

	group := func(id, title string, verbs ...*cobra.Command) {
		root.AddGroup(&cobra.Group{ID: id, Title: title})
		for _, v := range verbs {
			v.GroupID = id
		}
		root.AddCommand(verbs...)
	}
	group("both", "This node, or a cluster:", statusOf())
	group("node", "This node:", peersCommand(), mtuCommand(), guardCommand(), leakcheck(), service,
		policyCommand(), hostCommand(), cleanup())
	group("cluster", "A cluster, by a kubeconfig:", checkCommand(), walk(), bench, sysdump(),
		volume)
	root.AddCommand(versionCommand(), installCommand())
	return root
}

// choice makes cmd a parent of verbs that does nothing itself.
func choice(cmd *cobra.Command) {
	cmd.SuggestionsMinimumDistance = 2
	cmd.Args = cobra.ArbitraryArgs
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		var verbs []string
		for _, v := range cmd.Commands() {
			verbs = append(verbs, v.Name())
		}
		suggested := cmd.SuggestionsFor(strings.Join(args, " "))
		switch {
		case len(args) == 0 && !cmd.HasParent():
			return cmd.Help()
		case len(args) == 0:
			return fmt.Errorf("%s what? One of %s: %w", cmd.CommandPath(),
				strings.Join(verbs, ", "), errUsage)
		case len(suggested) > 0:
			return fmt.Errorf("unknown verb %q, did you mean %s? %w", args[0],
				strings.Join(suggested, " or "), errUsage)
		}
		return fmt.Errorf("unknown verb %q: %w", args[0], errUsage)
	}
}

// verb completes cmd with the form of its help, its arguments and completions. cmd calls run.
func verb(cmd *cobra.Command, run func(c call) error) *cobra.Command {
	cmd.Long = strings.TrimSpace(cmd.Short + ".\n\n" + cmd.Long)
	cmd.Example = "  " + strings.ReplaceAll(cmd.Example, "\n", "\n  ")
	cmd.Args = cobra.ArbitraryArgs
	if takesNone := !strings.Contains(cmd.Use, " "); takesNone {
		cmd.Args = func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return fmt.Errorf("unexpected argument %q: %w", args[0], errUsage)
			}
			return nil
		}
	}
	if cmd.ValidArgsFunction == nil {
		cmd.ValidArgsFunction = cobra.NoFileCompletions
	}
	if cmd.Flags().Lookup("context") != nil {
		complete(cmd, "context", contexts)
	}

	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return run(call{ctx: cmd.Context(), out: cmd.OutOrStdout(), progress: cmd.ErrOrStderr(),
			args: args})
	}
	return cmd
}

// reporting is verb for a verb with -o, which prints for people or for programs.
func reporting(cmd *cobra.Command, run func(c call) error) *cobra.Command {
	format := cmd.Flags().StringP("output", "o", "table",
		"`format`: table for people, json for programs")
	complete(cmd, "output", cobra.FixedCompletions([]string{"table", "json"},
		cobra.ShellCompDirectiveNoFileComp))
	return verb(cmd, func(c call) error {
		if *format != "table" && *format != "json" {
			return fmt.Errorf("-o %s: write table or json: %w", *format, errUsage)
		}
		c.json = *format == "json"
		return run(c)
	})
}

// complete sets the completion of a flag of cmd.
func complete(cmd *cobra.Command, flag string, how cobra.CompletionFunc) {
	if err := cmd.RegisterFlagCompletionFunc(flag, how); err != nil {
		panic(err) // the flag is missing, or has a completion already
	}
}

// contexts completes the names of the kubeconfig's contexts.
func contexts(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
	var names []string
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = cmd.Flag("kubeconfig").Value.String()
	if cfg, err := rules.Load(); err == nil {
		for name := range cfg.Contexts {
			names = append(names, name)
		}
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

// twoDashes refuses a flag of several letters with one dash.
func twoDashes(root *cobra.Command, args []string) error {
	cmd, rest, err := root.Find(args)
	if err != nil || cmd.DisableFlagParsing {
		return nil
	}
	cmd.InitDefaultHelpFlag()
	if err := commandline.TwoDashes(cmd.Flags(), rest); err != nil {
		return fmt.Errorf("%w: %w", err, errUsage)
	}
	return nil
}

// onNode makes cmd a verb for the veild of this node, without flags of its own.
func onNode(cmd *cobra.Command, run func(c call, socket string) error) *cobra.Command {
	socket := socketFlag(cmd)
	return reporting(cmd, func(c call) error { return run(c, *socket) })
}

func socketFlag(cmd *cobra.Command) *string {
	return cmd.Flags().String("socket", abi.AdminSocket, "veild's `socket`")
}

func peersCommand() *cobra.Command {
	return onNode(&cobra.Command{
		Use: "peers", Short: "Show other nodes: state, endpoint, handshake, bytes",
		Example: `veilctl peers -o json | jq '.[] | select(.state != "up")'`,
	}, peers)
}

func mtuCommand() *cobra.Command {
	return onNode(&cobra.Command{
		Use: "mtu", Short: "Show where the MTU of pods comes from, number by number",
		Example: "veilctl mtu",
	}, mtu)
}

func guardCommand() *cobra.Command {
	return onNode(&cobra.Command{
		Use: "guard", Short: "Show where the guard is attached and what it dropped, by reason",
		Example: "veilctl guard",
	}, guardDrops)
}

func hostCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "host",
		Short: "Show the kernel's links, addresses, rules, routes and nftables, for a " +
			"bug report",
		Long:    "It needs no veild, changes nothing, and shows no key.",
		Example: "veilctl host > host.txt",
	}
	confDir := cmd.Flags().String("cni-conf-dir", abi.CNIConfDir,
		"`directory` of CNI configurations")
	return verb(cmd, func(c call) error { return node.Describe(c.out, *confDir) })
}

func versionCommand() *cobra.Command {
	return reporting(&cobra.Command{
		Use: "version", Short: "Show which veilctl this is", Example: "veilctl version",
	}, func(c call) error {
		platform := runtime.GOOS + "/" + runtime.GOARCH
		v := map[string]string{"version": version.String(), "go": runtime.Version(),
			"platform": platform}
		return c.print(v, false, func() error {
			_, err := fmt.Fprintf(c.out, "%s (%s, %s)\n", version.String(), runtime.Version(),
				platform)
			return err
		})
	})
}
