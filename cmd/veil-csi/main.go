// Command veil-csi is Kubeveil's CSI driver: encrypted volumes on disks of the node. See
// docs/storage.md for what it does.
//
// Classes with keys: file need --key-file and make-key. With --store file: the driver runs without
// Kubernetes, for the trial in the help and for tests of the whole process.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/kubeveil/kubeveil/csi/keyring"
	"github.com/kubeveil/kubeveil/internal/commandline"
	"github.com/kubeveil/kubeveil/internal/secret"
	"github.com/kubeveil/kubeveil/pkg/version"
)

const usage = `Serve volumes to pods. Volumes are encrypted on this node, and their metadata
on the disk is verified before use.

Usage:
  veil-csi --node NAME [flags]   serve CSI until SIGTERM; mounts stay
  veil-csi make-key FILE         write a new key-encryption key for --key-file to a new file
  veil-csi place-copies          select the nodes of copies, once per cluster: see its -h
  veil-csi cleanup [flags]       remove what veil-csi left on this node: see veil-csi cleanup -h
  veil-csi version

Examples:
  veil-csi --node node-1 --kms-socket /run/kubeveil/kms/kms.sock
                                states of volumes in Kubernetes, keys from a KMS v2 plugin
  veil-csi --node node-1 --disks /dev/disk/by-id/nvme-1,/dev/disk/by-id/nvme-2
                                also use whole disks, for classes with backend: disk
  veil-csi make-key /root/kek && veil-csi --node here --registration "" --endpoint /run/csi.sock \
      --store file:/var/lib/veil-states --cluster lab --key-file /root/kek
                                a trial without Kubernetes; the owner of the disk has the key

Flags:
`

func main() {
	// Do this before anything else. Then no key is ever in memory that can be dumped or swapped,
	// and the runtime leaves no copy of a key on a stack that it moved.
	if needsKeys(os.Args[1:]) {
		err := secret.KeepStacks()
		if err == nil {
			err = keyring.Harden()
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, "veil-csi:", err)
			os.Exit(1)
		}
	}
	commandline.MainArgs("veil-csi", run)
}

// needsKeys reports whether the process will have keys in memory.
func needsKeys(args []string) bool {
	return len(args) > 0 && !slices.Contains([]string{"version", commandCleanup, commandPlace, "-h",
		"--help"}, args[0])
}

func run(ctx context.Context, args []string) error {
	if len(args) > 0 && args[0] == commandCleanup {
		return runCleanup(ctx, args[1:])
	}
	if len(args) > 0 && args[0] == commandPlace {
		return runPlace(ctx, args[1:])
	}
	var o options
	fs := o.flags()
	if err := commandline.Parse(fs, usage, args, os.Stdout); err != nil {
		return err
	}
	switch command := fs.Arg(0); {
	case command == "version" && fs.NArg() == 1:
		fmt.Println(version.String())
		return nil
	case command == "make-key" && fs.NArg() == 2:
		return makeKey(fs.Arg(1))
	case command == "make-key":
		return errors.New("make-key takes one file: veil-csi make-key FILE")
	case fs.NArg() > 0:
		return fmt.Errorf("unexpected argument %q: see veil-csi -h", command)
	}
	if err := o.check(); err != nil {
		return err
	}
	return o.serve(ctx)
}

// makeKey writes a new key-encryption key to path. It returns an error if the file exists.
func makeKey(path string) error {
	err := keyring.CreateFile(path)
	if errors.Is(err, os.ErrExist) {
		return fmt.Errorf("make key: %s exists, and is not overwritten: volumes whose keys it wraps "+
			"are lost without it", path)
	}
	return err
}
