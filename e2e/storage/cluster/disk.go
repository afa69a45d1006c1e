package cluster

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/kubeveil/kubeveil/e2e/bench"
)

// controlLines is how often the control's text is written in clear.
const controlLines = 1000

// disk gives the ciphertext a file system of its own that shares blocks, as docs/storage.md says, for this boot and later ones; and writes the control
// there: what is on this disk in clear is found by who reads the disk.
func (s *Session) disk(ctx context.Context) error {
	_, err := s.node(ctx, fmt.Sprintf("udevadm settle && mkfs.xfs -q %[1]s && mkdir -p %[2]s && echo '%[1]s %[2]s xfs defaults 0 0' >>/etc/fstab && "+
		"mount %[2]s && yes %[3]s | head -n %[4]d >%[2]s/control && sync", s.Disk.Device(0), dataDir, s.control, controlLines))
	return err
}

// nothingInClear reads the disk as its owner does, while it has at least that many volumes: the canary is nowhere, and the control is found. When is for people.
func (s *Session) nothingInClear(ctx context.Context, when string, volumes int) error {
	out, err := s.node(ctx, "sync; ls "+images+"/*.img | wc -l")
	if err != nil {
		return err
	}
	if n, err := strconv.Atoi(out); err != nil || n < volumes {
		return fmt.Errorf("there are %s volumes on the disk, want %d", out, volumes)
	}
	leaked, _, err := s.Disk.Count(s.canary)
	if err != nil {
		return err
	}
	seen, searched, err := s.Disk.Count(s.control)
	if err != nil {
		return err
	}
	found := []bench.Gate{
		bench.Exactly("raw disk of the volumes, "+when+": canaries in clear", leaked, 0, "canaries"),
		{
			Name: "raw disk of the volumes, " + when + ": the control in clear (the search can find)", Want: fmt.Sprintf("at least %d times", controlLines*9/10),
			Got: fmt.Sprintf("%d times in %d MiB", seen, searched>>20), OK: seen >= controlLines*9/10,
		},
	}
	s.gates = append(s.gates, found...)
	for _, g := range found {
		if !g.OK {
			err = errors.Join(err, fmt.Errorf("%s: want %s, got %s", g.Name, g.Want, g.Got))
		}
	}
	return err
}
