package main

import (
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"
	"golang.org/x/tools/go/packages"
)

func main() {
	var quiet bool
	cmd := &cobra.Command{
		Use:   "layers PACKAGE...",
		Short: "Show which files of a package use a file that stands above them",
		Args:  cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return show(cmd.OutOrStdout(), quiet, args...)
		},
		SilenceUsage: true,
	}
	cmd.Flags().BoolVarP(&quiet, "quiet", "q", false, "print the counts alone")
	if err := cmd.Execute(); err != nil {
		os.Exit(1)
	}
}

// show prints the number of uses, and unless quiet the uses that lead back up, of each package that
// matches patterns. Patterns have the form of go list.
func show(w io.Writer, quiet bool, patterns ...string) error {
	pkgs, err := packages.Load(&packages.Config{Mode: packages.NeedName | packages.NeedFiles |
		packages.NeedSyntax | packages.NeedTypes | packages.NeedTypesInfo | packages.NeedImports |
		packages.NeedDeps}, patterns...)
	if err != nil {
		return err
	}
	for _, p := range pkgs {
		if len(p.Errors) > 0 {
			return fmt.Errorf("%s: %w", p.PkgPath, p.Errors[0])
		}
		uses := usesOf(p)
		back := uses.back()
		fmt.Fprintf(w, "%s: %d files, %d uses from file to file, %d back up\n", p.PkgPath,
			len(p.Syntax), len(uses), len(back))
		if quiet {
			continue
		}
		for _, u := range back {
			fmt.Fprintf(w, "\t%s uses %s: %s\n", u.from, u.to, uses[u])
		}
	}
	return nil
}
