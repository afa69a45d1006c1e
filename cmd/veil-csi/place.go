package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"

	"github.com/kubeveil/kubeveil/csi/kubestore"
	"github.com/kubeveil/kubeveil/pkg/telemetry"
	"github.com/kubeveil/kubeveil/pkg/version"
)

const placeUsage = `veil-csi place-copies selects the node for each claim that is to be a copy of a volume or
snapshot of this driver: the node of its source. It runs once in the cluster, holds no key,
and ends at SIGTERM.

Usage:
  veil-csi place-copies [flags]

Flags:
`

// commandPlace is the verb.
const commandPlace = "place-copies"

// runPlace is the verb place-copies, with flags of its own.
func runPlace(ctx context.Context, args []string) error {
	fs := flag.NewFlagSet("veil-csi "+commandPlace, flag.ContinueOnError)
	fs.Usage = func() {
		fmt.Fprint(fs.Output(), placeUsage)
		fs.PrintDefaults()
	}
	kubeconfig := fs.String("kubeconfig", "", "kubeconfig `file`; empty: the pod's service account")
	level := fs.String("log-level", "info", "debug, info, warn or error")
	format := fs.String("log-format", "text", "text or json")
	if err := fs.Parse(args); errors.Is(err, flag.ErrHelp) {
		return nil
	} else if err != nil {
		return err
	}
	if fs.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q: see veil-csi place-copies -h", fs.Arg(0))
	}

	log, err := telemetry.NewLogger(os.Stderr, *level, *format)
	if err != nil {
		return err
	}
	p, err := kubestore.NewPlacer(*kubeconfig, log)
	if err != nil {
		return err
	}
	log.Info("copies are placed on the node of their source", "version", version.String())
	p.Run(ctx)
	return nil
}
