package main

import (
	"context"
	"os"

	"github.com/kubeveil/kubeveil/csi/kubestore/placement"
	"github.com/kubeveil/kubeveil/internal/commandline"
	"github.com/kubeveil/kubeveil/pkg/version"
)

const placeUsage = `Select the node of each claim that copies a volume or snapshot of this driver.
It is the node of the source. The command runs once per cluster, until SIGTERM, and has no keys.

Usage:
  veil-csi place-copies [flags]

Flags:
`

// commandPlace is the name of the subcommand.
const commandPlace = "place-copies"

// runPlace runs the subcommand place-copies with its flags args.
func runPlace(ctx context.Context, args []string) error {
	fs := commandline.New("veil-csi " + commandPlace)
	kubeconfig := fs.String("kubeconfig", "", "kubeconfig `file`; empty: the pod's service account")
	level := fs.String("log-level", "info", "`level` debug, info, warn or error")
	format := fs.String("log-format", "text", "`format` text or json")
	if err := commandline.ParseAll(fs, placeUsage, args, os.Stdout); err != nil {
		return err
	}

	log, err := commandline.NewLogger(os.Stderr, *level, *format)
	if err != nil {
		return err
	}
	p, err := placement.New(*kubeconfig, log)
	if err != nil {
		return err
	}
	log.Info("copies are placed on the node of their source", "version", version.String())
	p.Run(ctx)
	return nil
}
