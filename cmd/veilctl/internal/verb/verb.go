package verb

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/kubeveil/kubeveil/internal/commandline"
)

// Usage of the flags that several verbs for a cluster have.
const (
	ImageUsage = "`image` of the tools, which the nodes\nhave or can pull"
	NodesUsage = "two nodes, `A,B` (default: the first two Ready and schedulable)"
)

// Root completes cmd as the root command, the parent of all verbs. Errors of flags then match
// ErrUsage.
func Root(cmd *cobra.Command) {
	cobra.EnableCommandSorting = false
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	Choice(cmd)
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error {
		var bad *pflag.InvalidValueError
		if errors.As(err, &bad) && bad.GetFlag().Value.Type() == "duration" {
			err = fmt.Errorf("--%s %q: write a time with its unit, such as 90s, 10m or 2h",
				bad.GetFlag().Name, bad.GetValue())
		}
		return fmt.Errorf("%w: %w", err, ErrUsage)
	})
}

// Run runs the verb of root that args name. It writes the result to out, and messages during the
// run to progress.
func Run(ctx context.Context, root *cobra.Command, args []string, out, progress io.Writer) error {
	if err := twoDashes(root, args); err != nil {
		return err
	}
	root.SetArgs(args)
	root.SetOut(out)
	root.SetErr(progress)
	cmd, err := root.ExecuteContextC(ctx)
	return withHelp(cmd, err)
}

// twoDashes returns an error for a flag of several letters with only one dash.
func twoDashes(root *cobra.Command, args []string) error {
	cmd, rest, err := root.Find(args)
	if err != nil || cmd.DisableFlagParsing {
		return nil
	}
	cmd.InitDefaultHelpFlag()
	if err := commandline.TwoDashes(cmd.Flags(), rest); err != nil {
		return withHelp(cmd, fmt.Errorf("%w: %w", err, ErrUsage))
	}
	return nil
}

// Choice completes cmd as a parent of verbs. Without a verb, it returns an error that lists them.
func Choice(cmd *cobra.Command) {
	cmd.SuggestionsMinimumDistance = 2
	cmd.Args = cobra.ArbitraryArgs
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		var verbs []string
		for _, v := range cmd.Commands() {
			if !v.Hidden {
				verbs = append(verbs, v.Name())
			}
		}

		suggested := cmd.SuggestionsFor(strings.Join(args, " "))
		switch {
		case len(args) == 0 && !cmd.HasParent():
			return cmd.Help()
		case len(args) == 0:
			return fmt.Errorf("%s what? One of %s: %w", cmd.CommandPath(),
				strings.Join(verbs, ", "), ErrUsage)
		case len(suggested) > 0:
			return fmt.Errorf("unknown verb %q, did you mean %s? %w", args[0],
				strings.Join(suggested, " or "), ErrUsage)
		}
		if cmd.HasParent() {
			return fmt.Errorf("unknown verb %q: write one of %s: %w", args[0],
				strings.Join(verbs, ", "), ErrUsage)
		}
		return fmt.Errorf("unknown verb %q: %w", args[0], ErrUsage)
	}
}

// New completes cmd as a verb that calls run. It sets the form of the help, checks the number of
// arguments, and turns off the completion of file names.
func New(cmd *cobra.Command, run func(c Call) error) *cobra.Command {
	cmd.Long = strings.TrimSpace(cmd.Short + ".\n\n" + cmd.Long)
	cmd.Example = "  " + strings.ReplaceAll(cmd.Example, "\n", "\n  ")
	cmd.Args = cobra.ArbitraryArgs
	if takesNone := !strings.Contains(cmd.Use, " "); takesNone {
		cmd.Args = func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return fmt.Errorf("unexpected argument %q: %w", args[0], ErrUsage)
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
		return run(Call{Ctx: cmd.Context(), Out: cmd.OutOrStdout(), Progress: cmd.ErrOrStderr(),
			Args: args})
	}
	return cmd
}

// Reporting is New for a verb with the flag -o, which selects output for people or for programs.
func Reporting(cmd *cobra.Command, run func(c Call) error) *cobra.Command {
	format := cmd.Flags().StringP("output", "o", "table",
		"`format`: table for people, json for programs")
	complete(cmd, "output", cobra.FixedCompletions([]string{"table", "json"},
		cobra.ShellCompDirectiveNoFileComp))
	return New(cmd, func(c Call) error {
		if *format != "table" && *format != "json" {
			return fmt.Errorf("-o %s: write table or json: %w", *format, ErrUsage)
		}
		c.JSON = *format == "json"
		return run(c)
	})
}
