package vm

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
)

// sharedDisk is the third disk of every machine, which they read and cannot write: the programs and archives of images. What is
// large and the same everywhere is not copied, which takes emulated machines long.
const sharedDisk = "shared.ext4"

// sharedDir is where lab-seed.service mounts it.
const sharedDir = "/opt/lab/"

// makeShared makes the disk.
func (c *Cluster) makeShared(ctx context.Context) error {
	dir := c.file("shared")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	paths := append([]string{c.program("kubelet"), c.program("kubeadm")}, c.images...)
	for _, name := range containerd2 {
		paths = append(paths, c.program(name))
	}
	total := int64(0)
	for _, path := range paths {
		info, err := os.Stat(path)
		if err != nil {
			return err
		}
		total += info.Size()
		if err := linkOrCopy(path, filepath.Join(dir, filepath.Base(path))); err != nil {
			return fmt.Errorf("shared disk: %w", err)
		}
	}
	// A twentieth more than its files is room enough for what ext4 needs itself.
	size := fmt.Sprintf("%dk", total/1024*21/20+8<<10)
	out, err := exec.CommandContext(ctx, "mke2fs", "-q", "-t", "ext4", "-O", "^has_journal", "-m", "0", "-d", dir, c.file(sharedDisk), size).CombinedOutput()
	if err != nil {
		return fmt.Errorf("shared disk: %w: %s", err, out)
	}
	return nil
}

// linkOrCopy makes a second name of a file, or a copy where that is on another file system.
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
