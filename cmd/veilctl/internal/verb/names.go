package verb

import (
	"context"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/client-go/tools/clientcmd"
)

// namesLimit bounds the time in which completion lists names, because the shell waits meanwhile.
const namesLimit = 2 * time.Second

// CompleteNames completes the first `most` arguments of cmd with the names that list returns. If
// list fails, there are no completions, because a shell shows no errors.
func CompleteNames(cmd *cobra.Command, most int,
	list func(ctx context.Context) ([]string, error)) {
	cmd.ValidArgsFunction = func(cmd *cobra.Command, args []string,
		_ string) ([]string, cobra.ShellCompDirective) {
		if len(args) >= most {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		ctx, stop := context.WithTimeout(cmd.Context(), namesLimit)
		defer stop()
		names, err := list(ctx)
		if err != nil {
			cobra.CompDebugln(err.Error(), false)
		}
		names = slices.DeleteFunc(names, func(n string) bool { return slices.Contains(args, n) })
		return names, cobra.ShellCompDirectiveNoFileComp
	}
}

// NamesOnNode is CompleteNames for a list that needs the value of cmd's flag --socket. It returns
// cmd.
func NamesOnNode(cmd *cobra.Command, most int,
	list func(ctx context.Context, socket string) ([]string, error)) *cobra.Command {
	CompleteNames(cmd, most, func(ctx context.Context) ([]string, error) {
		return list(ctx, cmd.Flag("socket").Value.String())
	})
	return cmd
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
