package storage

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/kubeveil/kubeveil/e2e/disk"
	"github.com/kubeveil/kubeveil/pkg/bench"
)

// controlLines is how often the control's text is written in clear, on each disk.
const controlLines = 1000

// rootControl is the control on the node's root disk, in a folder of the kubelet: there a volume's
// mount that does not reach the host would land.
const rootControl = "/var/lib/kubelet/e2e-control"

// disk puts the ciphertext on a file system of its own that shares blocks, as docs/storage.md
// describes, for this boot and later ones. It writes the control to that disk and to the node's
// root disk. A reader of the disks finds what is on them in clear.
func (s *Session) disk(ctx context.Context) error {
	_, err := s.node(ctx, fmt.Sprintf("udevadm settle && mkfs.xfs -q %[1]s && mkdir -p %[2]s && "+
		"echo '%[1]s %[2]s xfs defaults 0 0' >>/etc/fstab && "+
		"mount %[2]s && yes %[3]s | head -n %[4]d | tee %[5]s >%[2]s/control && sync",
		s.Disk.Device(0), dataDir, s.control, controlLines, rootControl))
	return err
}

// nothingInClear reads the disk of the volumes, and the node's root disk, as their owner does,
// while there are at least that many volumes. When is for people.
func (s *Session) nothingInClear(ctx context.Context, when string, volumes int) error {
	out, err := s.node(ctx, "sync; ls "+images+"/*.img | wc -l")
	if err != nil {
		return err
	}
	if n, err := strconv.Atoi(out); err != nil || n < volumes {
		return fmt.Errorf("there are %s volumes on the disk, want %d", out, volumes)
	}
	// The file of the root disk is an overlay: it contains what was written since the machine's
	// first boot.
	root := disk.Disk{Serial: "root", Path: s.Cluster.Machines[0].RootDisk()}
	var errs []error
	for _, d := range []struct {
		name string
		disk disk.Disk
	}{{"raw disk of the volumes", s.Disk}, {"root disk of the node", root}} {
		found, err := s.search(d.disk, d.name+", "+when)
		s.gates = append(s.gates, found...)
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// search fails if the canary is anywhere on the disk, or the control is missing. what is for
// people.
func (s *Session) search(disk disk.Disk, what string) ([]bench.Gate, error) {
	leaked, _, err := disk.Count(s.canary)
	if err != nil {
		return nil, err
	}
	seen, searched, err := disk.Count(s.control)
	if err != nil {
		return nil, err
	}
	found := []bench.Gate{
		bench.Exactly(what+": canaries in clear", leaked, 0, "canaries"),
		{
			Name: what + ": the control in clear (the search can find)",
			Want: fmt.Sprintf("at least %d times", controlLines*9/10),
			Got:  fmt.Sprintf("%d times in %d MiB", seen, searched>>20),
			OK:   seen >= controlLines*9/10,
		},
	}
	for _, g := range found {
		if !g.OK {
			err = errors.Join(err, fmt.Errorf("%s: want %s, got %s", g.Name, g.Want, g.Got))
		}
	}
	return found, err
}
