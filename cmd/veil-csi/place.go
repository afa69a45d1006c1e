package main

import (
	"context"
	"os"

	"github.com/kubeveil/kubeveil/csi/kubestore/placement"
	"github.com/kubeveil/kubeveil/internal/commandline"
	"github.com/kubeveil/kubeveil/pkg/telemetry"
	"github.com/kubeveil/kubeveil/pkg/version"
)

const placeUsage = `Select the node for each claim that is to be a copy: the node of its source.
Sources are volumes and snapshots of this driver. This runs once in the cluster, holds no key, and
ends at SIGTERM.

Usage:
  veil-csi place-copies [flags]

Flags:
`

// commandPlace is the verb.
const commandPlace = "place-copies"

// runPlace is the verb place-copies, with flags of its own.
func runPlace(ctx context.Context, args []string) error {
	fs := commandline.New("veil-csi " + commandPlace)
	kubeconfig := fs.String("kubeconfig", "", "kubeconfig `file`; empty: the pod's service account")
	level := fs.String("log-level", "info", "`level` debug, info, warn or error")
	format := fs.String("log-format", "text", "`format` text or json")
	if err := commandline.ParseAll(fs, placeUsage, args, os.Stdout); err != nil {
		return err
	}

	log, err := telemetry.NewLogger(os.Stderr, *level, *format)
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
