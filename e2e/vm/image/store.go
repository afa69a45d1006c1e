package image

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/kubeveil/kubeveil/e2e/lab/labhost"
)

// SharedDisk is the file of the third disk, of which every machine has an overlay. It contains
// programs and a store of containerd with all images. An emulated machine needs a minute and a half
// to unpack and import the images. This host needs seconds.
const SharedDisk = "shared.ext4"

// sharedSize leaves space for the data that containers write.
const sharedSize = "8G"

// SharedDir is the folder on which lab-seed.service mounts the shared disk.
const SharedDir = "/opt/lab/"

// StoreUnit makes a machine's containerd use the store of the shared disk.
const StoreUnit = `[Service]
ExecStartPre=/bin/sh -c 'mountpoint -q /var/lib/containerd || { mount -o remount,rw /opt/lab && mkdir -p /var/lib/containerd && mount --bind /opt/lab/store /var/lib/containerd; }'
`

// storeConfig is the configuration of a containerd that only stores images. Its arguments are the
// folder of the store and the socket. The state is in /run, which is removed when the host ends.
const storeConfig = `version = 3
root = %q
state = "/run/lab-containerd"
disabled_plugins = ["io.containerd.grpc.v1.cri", "io.containerd.cri.v1.images", "io.containerd.cri.v1.runtime", "io.containerd.nri.v1.nri", "io.containerd.internal.v1.opt"]
[grpc]
  address = %q
`

// storeSocket is the path of containerd's socket in the host.
const storeSocket = "/run/lab-containerd/containerd.sock"

// Store makes the shared disk.
type Store struct {
	// Dir is the folder of the disk, and of files that its making needs.
	Dir string
	// Program returns the path of a program of this machine.
	Program func(name string) string
	// Host is where containerd runs meanwhile. Its /run is its own.
	Host *labhost.Host
	// Images lists the archives of images.
	Images []string
}

// Make makes the disk.
func (s Store) Make(ctx context.Context) error {
	dir := filepath.Join(s.Dir, "shared")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	for _, name := range append([]string{"kubelet", "kubeadm"}, containerd2...) {
		if err := linkOrCopy(s.Program(name), filepath.Join(dir, name)); err != nil {
			return fmt.Errorf("shared disk: %w", err)
		}
	}
	if err := s.fill(ctx, filepath.Join(dir, "store")); err != nil {
		return fmt.Errorf("store of images: %w", err)
	}
	out, err := exec.CommandContext(ctx, "mke2fs", "-q", "-t", "ext4", "-E",
		"lazy_itable_init=1,lazy_journal_init=1", "-m", "0",
		"-d", dir, filepath.Join(s.Dir, SharedDisk), sharedSize).CombinedOutput()
	if err != nil {
		return fmt.Errorf("shared disk: %w: %s", err, out)
	}
	return nil
}

// fill imports the images to a store in dir with containerd 2. containerd 1.6 can read the
// store too.
func (s Store) fill(ctx context.Context, dir string) error {
	config := filepath.Join(s.Dir, "containerd.toml")
	if err := os.WriteFile(config, fmt.Appendf(nil, storeConfig, dir, storeSocket),
		0o644); err != nil {
		return err
	}

	p, err := s.Host.Start(ctx, s.Program("containerd"), "--config", config)
	if err != nil {
		return err
	}

	ctr := func(args ...string) error {
		_, err := s.Host.Exec(ctx, s.Program("ctr"),
			append([]string{"--address", storeSocket, "--namespace", "k8s.io"}, args...)...)
		return err
	}
	err = labhost.Until(ctx, 30*time.Second, func() error {
		if !p.Running() {
			return labhost.Stop(errors.New("containerd has ended, see its log"))
		}
		return ctr("version")
	})

	for _, path := range s.Images {
		if err == nil {
			err = ctr("images", "import", path)
		}
	}

	// SIGTERM lets containerd close its database.
	return errors.Join(err, p.Term(ctx))
}

// linkOrCopy makes a hard link to a file, or a copy if the link fails, for example because the file
// is on another file system.
func linkOrCopy(from, to string) error {
	if os.Link(from, to) == nil {
		return nil
	}
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	info, err := in.Stat()
	if err != nil {
		return err
	}
	out, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, info.Mode().Perm())
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}
