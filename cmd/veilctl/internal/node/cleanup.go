package node

import (
	"fmt"
	"io"
	"log/slog"
	"os"

	"github.com/spf13/cobra"

	"github.com/kubeveil/kubeveil/cmd/veilctl/internal/verb"
	"github.com/kubeveil/kubeveil/pkg/config"
	"github.com/kubeveil/kubeveil/pkg/node"
)

// Cleanup returns the verb that does the same as `veild cleanup`, with output as text or JSON.
func Cleanup() *cobra.Command {
	cmd := &cobra.Command{
		Use: "cleanup", Short: "Remove everything of Kubeveil's network from this node",
		Long: `Stop veild and veil-wg first, because they would restore it. The command may be
repeated. It does not change storage.`,
		Example: "veilctl cleanup",
	}
	fs := cmd.Flags()
	file := fs.String("config", "", "veild's configuration `file` (default: default settings)")
	return verb.Reporting(cmd, func(c verb.Call) error {
		cfg := cleanupConfig(*file, os.Stderr)
		removed := []string{}
		log := slog.New(slog.NewTextHandler(os.Stderr, nil))
		err := node.Cleanup(c.Ctx, cfg, log, func(what string) {
			removed = append(removed, what)
			if !c.JSON {
				fmt.Fprintln(c.Out, "removed", what)
			}
		})
		if c.JSON {
			if e := verb.PrintJSON(c.Out, map[string]any{"removed": removed}); e != nil {
				return e
			}
		}
		return err
	})
}

// cleanupConfig returns the configuration in file, or the defaults if file is "". If the file
// cannot be used, it writes the reason to problems and returns the defaults: Kubeveil's objects
// have fixed names, so they can be removed without the file.
func cleanupConfig(file string, problems io.Writer) config.Config {
	if file == "" {
		return config.Default()
	}
	cfg, err := config.Load(file)
	if err != nil {
		fmt.Fprintf(problems,
			"veilctl: the configuration cannot be used, cleaning up with the defaults: %v\n", err)
		return config.Default()
	}
	return cfg
}
