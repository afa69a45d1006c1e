// Command veild is Kubeveil's node daemon. docs/concepts.md describes what it does,
// docs/reference/configuration.md its configuration.
package main

import (
	"context"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/commandline"
	"github.com/kubeveil/kubeveil/pkg/agent"
	"github.com/kubeveil/kubeveil/pkg/config"
	"github.com/kubeveil/kubeveil/pkg/version"
)

const usage = `Connect this node's pods to other nodes' pods through WireGuard, never in clear.

Usage:
  veild [flags]           run until SIGTERM; tunnels, guard and CNI configuration stay
  veild close [flags]     install only guard and unreachable routes: for boot, before the network
  veild check [flags]     report what is wrong with configuration and machine, change nothing
  veild cleanup [flags]   remove Kubeveil's network from this node; storage stays
  veild install-cni FROM TO
                          copy the CNI plugins from one directory to another; cleanup removes them
  veild idle              do nothing until SIGTERM
  veild version

Examples:
  veild --config /etc/kubeveil/veild.yaml
  veild --config /etc/kubeveil/veild.yaml --mtu 1400 --log-level debug
  veild cleanup

Flags (each overrides the file):
`

func main() { commandline.MainArgs("veild", run) }

func run(ctx context.Context, args []string) error {
	command := "run"
	if len(args) > 0 && args[0] != "" && args[0][0] != '-' {
		command, args = args[0], args[1:]
	}
	if command == "install-cni" {
		return installCNI(args)
	}

	fs := commandline.New("veild")
	flags := config.RegisterFlags(fs)
	if err := commandline.ParseAll(fs, usage, args, os.Stdout); err != nil {
		return err
	}

	switch command {
	case "run":
		return serve(ctx, flags)
	case "close":
		return closeNode(flags)
	case "check":
		return check(os.Stdout, flags)
	case "cleanup":
		return cleanup(ctx, flags)
	case "idle":
		<-ctx.Done()
		return nil
	case "version":
		fmt.Println(version.String())
		return nil
	}

	return fmt.Errorf("unknown command %q: write run, close, check, cleanup, install-cni, idle "+
		"or version", command)
}

func serve(ctx context.Context, flags *config.Flags) error {
	// The private key is in this process's memory. Forbid core dumps, and reading by other
	// processes.
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("forbid core dumps: %w", err)
	}
	cfg, err := flags.Load()
	if err != nil {
		return err
	}
	log, err := commandline.NewLogger(os.Stderr, cfg.LogLevel, cfg.LogFormat)
	if err != nil {
		return err
	}
	a, err := agent.New(agent.Dependencies{Config: cfg, Reload: flags.Load,
		Version: version.String(), Log: log})
	if err != nil {
		return err
	}
	log.Info("veild starts", "version", version.String(), "node", cfg.Node,
		"clusterRanges", cfg.ClusterRanges, "serviceRanges", cfg.ServiceRanges,
		"sites", len(cfg.Sites))
	defer log.Info("veild ends; tunnels, guard and CNI configuration stay")
	return a.Run(ctx)
}
