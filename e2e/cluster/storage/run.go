package storage

import (
	"context"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/kubeveil/kubeveil/e2e/cluster/storage/claims"
	"github.com/kubeveil/kubeveil/e2e/disk"
	"github.com/kubeveil/kubeveil/pkg/bench"
)

// Session is one run on a cluster whose first machine takes all pods.
type Session struct {
	claims.Client
	// Disk is an empty disk of that machine. The ciphertext of all volumes is put there, and what
	// its owner sees of it is searched.
	Disk disk.Disk
	// Manifests is the folder of the repository's manifests.
	Manifests string
	// Only selects cases by name; nil means all. The first two cases, which install the driver,
	// always run.
	Only *regexp.Regexp
	// Out gets progress for people.
	Out io.Writer
	// canary is in all that is written to volumes; control is in files beside their ciphertext and
	// on the root disk, in clear.
	canary, control string
	gates           []bench.Gate
}

// one is a case. Its name consists of lower case words with - between them.
type one struct {
	name  string
	limit time.Duration
	run   func(*Session, context.Context) error
}

// Run runs all cases and counts them in r, with the gates for clear text on the disk. A failed case
// does not end the run; Run returns only the error of ctx.
func Run(ctx context.Context, s *Session, r *bench.Result) error {
	mark := fmt.Sprintf("%08x", time.Now().UnixNano()&0xffffffff)
	s.canary, s.control = "kubeveil-canary-"+mark, "kubeveil-control-"+mark
	t := &r.Tests

	chosen := s.chosen()
	for i, c := range chosen {
		if ctx.Err() != nil {
			t.Skipped = append(t.Skipped, bench.Skip{Name: c.name,
				Reason: "the run was ended: " + context.Cause(ctx).Error()})
			continue
		}

		began := time.Now()
		limited, cancel := context.WithTimeoutCause(ctx, c.limit,
			fmt.Errorf("not done within %v", c.limit))
		err := c.run(s, limited)
		cancel()
		if err == nil {
			t.Passed++
			fmt.Fprintf(s.Out, "%2d/%d %-27s passed  %6.1f s\n", i+1, len(chosen), c.name,
				time.Since(began).Seconds())
			continue
		}

		t.Failed++
		t.Failures = append(t.Failures, bench.Failure{Name: c.name, Reason: err.Error()})
		fmt.Fprintf(s.Out, "%2d/%d %-27s FAILED  %6.1f s\n      %s\n", i+1, len(chosen), c.name,
			time.Since(began).Seconds(), strings.ReplaceAll(err.Error(), "\n", "\n      "))
		s.Describe(context.WithoutCancel(ctx), s.Out)
	}

	r.Gates = s.gates
	return context.Cause(ctx)
}

// chosen are the cases that are run.
func (s *Session) chosen() []one {
	var out []one
	for i, c := range cases() {
		if i < installing || s.Only == nil || s.Only.MatchString(c.name) {
			out = append(out, c)
		}
	}
	return out
}

// controlLines is how often the control's text is written in clear, on each disk.
const controlLines = 1000

// rootControl is the control on the node's root disk, in a folder of the kubelet: there a volume's
// mount that does not reach the host would land.
const rootControl = "/var/lib/kubelet/e2e-control"

// disk puts the ciphertext on a file system of its own that shares blocks, as docs/storage.md
// describes, for this boot and later ones. It writes the control to that disk and to the node's
// root disk. A reader of the disks finds what is on them in clear.
func (s *Session) disk(ctx context.Context) error {
	_, err := s.Node(ctx, fmt.Sprintf("udevadm settle && mkfs.xfs -q %[1]s && mkdir -p %[2]s && "+
		"echo '%[1]s %[2]s xfs defaults 0 0' >>/etc/fstab && "+
		"mount %[2]s && yes %[3]s | head -n %[4]d | tee %[5]s >%[2]s/control && sync",
		s.Disk.Device(0), dataDir, s.control, controlLines, rootControl))
	return err
}

// nothingInClear reads the disk of the volumes, and the node's root disk, as their owner does,
// while there are at least that many volumes. When is for people.
func (s *Session) nothingInClear(ctx context.Context, when string, volumes int) error {
	out, err := s.Node(ctx, "sync; ls "+images+"/*.img | wc -l")
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
		found, err := d.disk.Search(s.canary, s.control, controlLines*9/10, d.name+", "+when)
		s.gates = append(s.gates, found...)
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}
