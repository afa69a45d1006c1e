package main

import (
	"fmt"
	"io"
	"log/slog"
	"os"

	"github.com/spf13/cobra"

	"github.com/kubeveil/kubeveil/pkg/config"
	"github.com/kubeveil/kubeveil/pkg/node"
)

// cleanup is `veild cleanup`, told in tables or JSON.
func cleanup() *cobra.Command {
	cmd := &cobra.Command{
		Use: "cleanup", Short: "take everything of Kubeveil's network from this node",
		Long: `Stop veild and veil-wg before: they would put it back. It may be repeated. What storage
has stays.`,
		Example: "veilctl cleanup",
	}
	fs := cmd.Flags()
	file := fs.String("config", "", "veild's configuration `file`; by default the default places")
	return reporting(cmd, func(c call) error {
		cfg := cleanupConfig(*file, os.Stderr)
		removed := []string{}
		log := slog.New(slog.NewTextHandler(os.Stderr, nil))
		err := node.Cleanup(c.ctx, cfg, log, func(what string) {
			removed = append(removed, what)
			if !c.json {
				fmt.Fprintln(c.out, "removed", what)
			}
		})
		if c.json {
			if e := printJSON(c.out, map[string]any{"removed": removed}); e != nil {
				return e
			}
		}
		return err
	})
}

// cleanupConfig is what to clean up by: the file, or the defaults when none is named. What is ours
// has fixed names: a file that cannot be used, which is said, must not keep it here.
func cleanupConfig(file string, problems io.Writer) config.Config {
	if file == "" {
		return config.Default()
	}
	cfg, err := config.Load(file)
	if err != nil {
		fmt.Fprintf(problems,
			"veilctl: the configuration cannot be used, cleaning up by the defaults: %v\n", err)
		return config.Default()
	}
	return cfg
}
