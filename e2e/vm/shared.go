package vm

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/kubeveil/kubeveil/e2e/lab"
)

// sharedDisk is the file of the third disk, of which every machine has an overlay. It contains
// programs and a store of containerd with all images. An emulated machine needs a minute and a half
// to unpack and import the images. This host needs seconds.
const sharedDisk = "shared.ext4"

// sharedSize leaves space for the data that containers write.
const sharedSize = "8G"

// sharedDir is the folder on which lab-seed.service mounts the shared disk.
const sharedDir = "/opt/lab/"

// storeUnit makes a machine's containerd use the store of the shared disk.
const storeUnit = `[Service]
ExecStartPre=/bin/sh -c 'mountpoint -q /var/lib/containerd || { mount -o remount,rw /opt/lab && mkdir -p /var/lib/containerd && mount --bind /opt/lab/store /var/lib/containerd; }'
`

// storeConfig is the configuration of a containerd that only stores images. Its arguments are the
// folder of the store and the socket. The state is in /run, which is removed when the bridge's host
// ends.
const storeConfig = `version = 3
root = %q
state = "/run/lab-containerd"
disabled_plugins = ["io.containerd.grpc.v1.cri", "io.containerd.cri.v1.images", "io.containerd.cri.v1.runtime", "io.containerd.nri.v1.nri", "io.containerd.internal.v1.opt"]
[grpc]
  address = %q
`

// storeSocket is the path of containerd's socket in the bridge's host, which has its own /run.
const storeSocket = "/run/lab-containerd/containerd.sock"

// makeShared makes the shared disk.
func (c *Cluster) makeShared(ctx context.Context) error {
	dir := c.file("shared")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	for _, name := range append([]string{"kubelet", "kubeadm"}, containerd2...) {
		if err := linkOrCopy(c.program(name), filepath.Join(dir, name)); err != nil {
			return fmt.Errorf("shared disk: %w", err)
		}
	}
	if err := c.fillStore(ctx, filepath.Join(dir, "store")); err != nil {
		return fmt.Errorf("store of images: %w", err)
	}
	out, err := exec.CommandContext(ctx, "mke2fs", "-q", "-t", "ext4", "-E",
		"lazy_itable_init=1,lazy_journal_init=1", "-m", "0",
		"-d", dir, c.file(sharedDisk), sharedSize).CombinedOutput()
	if err != nil {
		return fmt.Errorf("shared disk: %w: %s", err, out)
	}
	c.step("images are stored")
	return nil
}

// fillStore imports the images to a store in dir with containerd 2. containerd 1.6 can read the
// store too.
func (c *Cluster) fillStore(ctx context.Context, dir string) error {
	config := c.file("containerd.toml")
	if err := os.WriteFile(config, fmt.Appendf(nil, storeConfig, dir, storeSocket),
		0o644); err != nil {
		return err
	}

	host := c.Lab.Bridge()
	p, err := host.Start(ctx, c.program("containerd"), "--config", config)
	if err != nil {
		return err
	}

	ctr := func(args ...string) error {
		_, err := host.Exec(ctx, c.program("ctr"),
			append([]string{"--address", storeSocket, "--namespace", "k8s.io"}, args...)...)
		return err
	}
	err = lab.Until(ctx, 30*time.Second, func() error {
		if !p.Running() {
			return lab.Stop(errors.New("containerd has ended, see its log"))
		}
		return ctr("version")
	})

	for _, path := range c.images {
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
