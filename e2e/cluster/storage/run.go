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

// Session is one run of the cases. The first machine of the cluster takes all pods.
type Session struct {
	claims.Client
	// Disk is an empty disk of that machine. The cases store the ciphertext of all volumes there,
	// and search the raw disk for plaintext.
	Disk disk.Disk
	// Manifests is the folder of the repository's manifests.
	Manifests string
	// Chart replaces the manifests unless it is empty.
	Chart Chart
	// Only selects cases by name. Nil means all. The cases that install the driver always run.
	Only *regexp.Regexp
	// Out receives the progress, a line per case.
	Out io.Writer
	// control is the text of files in clear on the disk with the ciphertext and on the root disk.
	control string
	gates   []bench.Gate
}

// one is a case. Its name consists of lower-case words joined by hyphens.
type one struct {
	name  string
	limit time.Duration
	run   func(*Session, context.Context) error
}

// Run runs the selected cases and adds their results to r, with the gates about plaintext on the
// disks. A failed case does not end the run. Run returns only the error of ctx.
func Run(ctx context.Context, s *Session, r *bench.Result) error {
	mark := fmt.Sprintf("%08x", time.Now().UnixNano()&0xffffffff)
	s.Canary, s.control = "kubeveil-canary-"+mark, "kubeveil-control-"+mark
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

// chosen returns the cases to run.
func (s *Session) chosen() []one {
	var out []one
	for i, c := range cases() {
		if i < installing || s.Only == nil || s.Only.MatchString(c.name) {
			out = append(out, c)
		}
	}
	return out
}

// controlLines is how often the control is written in clear on each disk.
const controlLines = 1000

// rootControl is the file with the control on the node's root disk. It is in a folder of the
// kubelet, because a mount that does not reach the host would make pods write there.
const rootControl = "/var/lib/kubelet/e2e-control"

// disk mounts a new file system that shares blocks for the ciphertext, as docs/storage.md
// describes, for this boot and later ones. It writes the control to that disk and to the node's
// root disk, to prove that the search finds text in clear.
func (s *Session) disk(ctx context.Context) error {
	_, err := s.Node(ctx, fmt.Sprintf("udevadm settle && mkfs.xfs -q %[1]s && mkdir -p %[2]s && "+
		"echo '%[1]s %[2]s xfs defaults 0 0' >>/etc/fstab && "+
		"mount %[2]s && yes %[3]s | head -n %[4]d | tee %[5]s >%[2]s/control && sync",
		s.Disk.Device(0), dataDir, s.control, controlLines, rootControl))
	return err
}

// nothingInClear searches the raw disk of the volumes and the node's root disk for the canary. It
// returns an error if there are fewer volumes than volumes. when is a text for the gates.
func (s *Session) nothingInClear(ctx context.Context, when string, volumes int) error {
	out, err := s.Node(ctx, "sync; ls "+images+"/*.img | wc -l")
	if err != nil {
		return err
	}
	if n, err := strconv.Atoi(out); err != nil || n < volumes {
		return fmt.Errorf("the disk has %s volumes, want %d", out, volumes)
	}
	// The file of the root disk is an overlay. It contains all writes since the machine's first
	// boot.
	root := disk.Disk{Serial: "root", Path: s.Cluster.Machines[0].RootDisk()}
	var errs []error
	for _, d := range []struct {
		name string
		disk disk.Disk
	}{{"raw disk of the volumes", s.Disk}, {"root disk of the node", root}} {
		found, err := d.disk.Search(s.Canary, s.control, controlLines*9/10, d.name+", "+when)
		s.gates = append(s.gates, found...)
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}
