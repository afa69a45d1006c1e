package main

import (
	"flag"
	"fmt"
	"log/slog"
	"os"

	"github.com/kubeveil/kubeveil/pkg/agent"
	"github.com/kubeveil/kubeveil/pkg/config"
)

// cleanup is `veild cleanup`, told in tables or JSON.
func cleanup(fs *flag.FlagSet) func(call) error {
	file := fs.String("config", "", "veild's configuration `file`; by default the default places")
	return func(c call) error {
		cfg := config.Default()
		if *file != "" {
			var err error
			if cfg, err = config.Load(*file); err != nil {
				return err
			}
		}
		removed := []string{}
		log := slog.New(slog.NewTextHandler(os.Stderr, nil))
		err := agent.Cleanup(c.ctx, cfg, log, func(what string) {
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
	}
}
