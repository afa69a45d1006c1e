package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/kubeveil/kubeveil/csi/cleanup"
	"github.com/kubeveil/kubeveil/csi/driver"
)

const cleanupUsage = `veil-csi cleanup takes what veil-csi leaves on this node, once its DaemonSet is deleted. It
refuses, and changes nothing, while volumes are open or ciphertext is left. It may be repeated.

Usage:
  veil-csi cleanup [flags]

Examples:
  veil-csi cleanup
  veil-csi cleanup -destroy         ciphertext, too: volumes that are left are lost

Flags:
`

// commandCleanup is the verb.
const commandCleanup = "cleanup"

// runCleanup is the verb cleanup, with flags of its own.
func runCleanup(ctx context.Context, args []string) error {
	p := cleanup.Paths{Blocks: "/sys/block"}
	fs := flag.NewFlagSet("veil-csi cleanup", flag.ContinueOnError)
	fs.Usage = func() {
		fmt.Fprint(fs.Output(), cleanupUsage)
		fs.PrintDefaults()
	}
	kubelet := fs.String("kubelet-dir", kubeletDir, "the kubelet's `folder`")
	fs.StringVar(&p.Run, "run", runDir, "`folder` for locks")
	fs.StringVar(&p.Files, "files", filepath.Join(dataDir, "volumes"),
		"`folder` for the files of volumes")
	fs.StringVar(&p.Claims, "claims", filepath.Join(dataDir, "claims"),
		"`folder` that says which volume has which disk")

	destroy := fs.Bool("destroy", false, "take ciphertext, too: volumes that are left are lost")
	wait := fs.Bool("wait", false,
		"stay until SIGTERM when it is done, as a pod of a DaemonSet does")
	fs.SetOutput(io.Discard)
	if err := fs.Parse(args); errors.Is(err, flag.ErrHelp) {
		fs.SetOutput(os.Stdout)
		fs.Usage()
		return nil
	} else if err != nil {
		return fmt.Errorf("%w: see veil-csi cleanup -h", err)
	}

	if fs.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q: see veil-csi cleanup -h", fs.Arg(0))
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
