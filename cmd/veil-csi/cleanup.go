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
While volumes are open or ciphertext is left, this refuses and changes nothing. It may be repeated.

Usage:
  veil-csi cleanup [flags]

Examples:
  veil-csi cleanup
  veil-csi cleanup --destroy        ciphertext, too: volumes that are left are lost

Flags:
`

// commandCleanup is the verb.
const commandCleanup = "cleanup"

// runCleanup is the verb cleanup, with flags of its own.
func runCleanup(ctx context.Context, args []string) error {
	p := cleanup.Paths{Blocks: "/sys/block"}
	fs := commandline.New("veil-csi " + commandCleanup)
	kubelet := fs.String("kubelet-dir", kubeletDir, "the kubelet's `folder`")
	fs.StringVar(&p.Run, "run", runDir, "`folder` for locks")
	fs.StringVar(&p.Files, "files", filepath.Join(dataDir, "volumes"),
		"`folder` for the files of volumes")
	fs.StringVar(&p.Claims, "claims", filepath.Join(dataDir, "claims"),
		"`folder` with the disk of each volume")

	destroy := fs.Bool("destroy", false, "remove ciphertext, too: volumes that are left are lost")
	wait := fs.Bool("wait", false,
		"stay until SIGTERM when it is done, as a pod of a DaemonSet does")
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
