// Package storage shows what encrypted volumes are for: a virtual machine whose disks belong to
// another company. The same file is written to a plain disk and to a volume, and the report shows
// the raw bytes of both, as the disks' owner sees them. A key is rewrapped while fio writes. Then
// the owner swaps the disks, empties one, restores an older image and changes bytes, and each time
// the driver refuses the volume.
//
// A gate is missed if a line of the file was found on the volume's disk. A gate is also missed if
// the file was not found on the plain disk, because then the search proves nothing. The report
// lists each change of a disk, and whether the volume was opened. Start reading at show.
package storage

import (
	"context"
	"errors"
	"log/slog"
	"path/filepath"

	"github.com/kubeveil/kubeveil/e2e/disk"
	"github.com/kubeveil/kubeveil/pkg/bench"
	"github.com/kubeveil/kubeveil/pkg/bench/report"
)

// demo is one run.
type demo struct {
	// dir is the folder for the disks and the machine.
	dir     string
	say     func(format string, args ...any)
	machine *disk.Machine
	// first and second have one volume each. plain has a file system in clear.
	first, second, plain disk.Disk
	result               *bench.Result
	report               *report.Report
	// canary is the text at the beginning of each line of the file.
	canary string
	// digest is the SHA-256 of the file, as the machine computed it.
	digest string
}

// Run runs the demonstration and returns the report. If a step failed, it returns no report. It
// needs root and the image of the machine. dir is a folder for the disks and the machine. root is
// the root of the repository, whose commit the result names. log receives the machine's steps.
// progress prints a line per step of the demonstration.
func Run(ctx context.Context, dir, root string, log *slog.Logger,
	progress func(format string, args ...any)) (rep *report.Report, err error) {
	d := &demo{dir: dir, say: progress}
	d.say("start a virtual machine with three disks, which are files of this host: two for " +
		"volumes, one plain")
	d.first, d.second, d.plain = d.disk("first"), d.disk("second"), d.disk("plain")
	d.machine, err = disk.Start(ctx, disk.MachineConfig{
		Disks: []disk.Disk{d.first, d.second, d.plain}, Dir: filepath.Join(d.dir, "machine"),
		Log: log,
	})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, d.machine.Close()) }()

	if err := d.begin(ctx, root); err != nil {
		return nil, err
	}
	if err := d.show(ctx); err != nil {
		return nil, err
	}
	return d.report, nil
}

// begin sets result and report to their first values.
func (d *demo) begin(ctx context.Context, root string) (err error) {
	if d.result, err = bench.New(d.machine.Platform(), root); err != nil {
		return err
	}
	if d.result.Kernel, err = d.machine.Kernel(ctx); err != nil {
		return err
	}
	d.report = &report.Report{
		Title: "A disk that belongs to another company",
		Lead: "A virtual machine whose disks are files of its host. The same file was " +
			"written to a plain disk and to a volume. Then the disks' owner tampered with them.",
		Result:     d.result,
		Labels:     map[string]string{caseRewrap: "Key rewrapped while fio writes"},
		SidesTitle: "What the disks' owner reads", RefusedWhat: "attempts of the disks' owner",
		Notes: notes,
	}
	return nil
}

// show runs the steps of the demonstration.
func (d *demo) show(ctx context.Context) error {
	for _, step := range []func(context.Context) error{d.write, d.look, d.rewrap, d.attack} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	return nil
}

var notes = []string{
	"The disks are raw files that their owner reads and changes while the machine runs. The " +
		"demonstration calls the CSI driver on the machine as a kubelet does, and shows its " +
		"answers.",
	"The dump of the volume's disk begins where the file's first block is: 4 MiB of header and " +
		"records, then the block's place in the file system.",
	"After each attempt, the disk was compared with its content before the attempt: nothing was " +
		"written. After all attempts, the volume on the restored disk opened with its file " +
		"unchanged.",
	"The key-encryption keys are files on the machine, which is acceptable only for a " +
		"demonstration: docs/storage.md.",
}
