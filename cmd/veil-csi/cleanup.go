package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/kubeveil/kubeveil/csi/cleanup"
	"github.com/kubeveil/kubeveil/csi/driver"
	"github.com/kubeveil/kubeveil/internal/commandline"
)

const cleanupUsage = `Remove what veil-csi left on this node, once its DaemonSet is deleted.
The command changes nothing while volumes are open or ciphertext is left. It may be repeated.

Usage:
  veil-csi cleanup [flags]

Examples:
  veil-csi cleanup
  veil-csi cleanup --destroy        remove ciphertext, too: the remaining volumes are lost

Flags:
`

// commandCleanup is the name of the subcommand.
const commandCleanup = "cleanup"

// runCleanup runs the subcommand cleanup with its flags args.
func runCleanup(ctx context.Context, args []string) error {
	p := cleanup.Paths{Blocks: "/sys/block"}
	fs := commandline.New("veil-csi " + commandCleanup)
	kubelet := fs.String("kubelet-dir", kubeletDir, "the kubelet's `folder`")
	fs.StringVar(&p.Run, "run", runDir, "`folder` with the lock files")
	fs.StringVar(&p.Files, "files", filepath.Join(dataDir, "volumes"),
		"`folder` with the files of volumes")
	fs.StringVar(&p.Claims, "claims", filepath.Join(dataDir, "claims"),
		"`folder` that records which disk each volume has")

	destroy := fs.Bool("destroy", false, "remove ciphertext, too: the remaining volumes are lost")
	wait := fs.Bool("wait", false,
		"after the clean-up, wait for SIGTERM, as a pod of a DaemonSet must")
	if err := commandline.ParseAll(fs, cleanupUsage, args, os.Stdout); err != nil {
		return err
	}

	p.Endpoint = filepath.Join(*kubelet, "plugins", driver.Name, "csi.sock")
	p.Registration = driver.RegistrationSocket(filepath.Join(*kubelet, "plugins_registry"))
	err := cleanup.Run(p, *destroy, func(what string) { fmt.Fprintln(os.Stdout, "removed", what) })
	if err != nil || !*wait {
		return err
	}

	fmt.Fprintln(os.Stdout, "nothing of veil-csi is on this node")
	<-ctx.Done()
	return nil
}
