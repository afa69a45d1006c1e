// Package demostorage shows what encrypted volumes are for: a virtual machine whose disks belong to
// another company. The same file is written to a plain disk and to a volume, and the raw bytes of
// both are shown as the disks' owner has them; then he swaps the disks, empties one, brings back an
// older image and changes bytes, and each time the volume is refused; and a key is wrapped again
// while fio writes.
//
// It writes report.html, report.md and result.json into -out and ends with status 1 when something
// of the file was found on the volume's disk, when it was not found on the plain one (the search
// would prove nothing), or when a changed disk was opened. Start reading at show.
package demostorage

import (
	"context"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/kubeveil/kubeveil/e2e/cmd/kvlab/internal/program"
	"github.com/kubeveil/kubeveil/e2e/disk"
	"github.com/kubeveil/kubeveil/e2e/lab"
	"github.com/kubeveil/kubeveil/pkg/bench"
	"github.com/kubeveil/kubeveil/pkg/bench/report"
)

// limit bounds a run that hangs.
const limit = 20 * time.Minute

// demo is one run of the program.
type demo struct {
	out     string
	say     func(format string, args ...any)
	machine *disk.Machine
	// first and second have a volume each; plain has a file system in clear.
	first, second, plain disk.Disk
	result               *bench.Result
	report               *report.Report
	// canary begins each line of the file.
	canary string
	// digest is the digest of the file that the machine returned.
	digest string
}

const usage = `kvlab demo storage shows a virtual machine's encrypted volumes as the owner of its
disks sees them, and what he can do to them, in about a minute.

Usage: kvlab demo storage [flags]

Example:
  kvlab demo storage -out /tmp/demo        report.html, report.md, result.json and the machine's
                                           logs go there

Flags:
`

// Command returns the verb.
func Command() *cobra.Command {
	flags := flag.NewFlagSet("kvlab demo storage", flag.ContinueOnError)
	out := flags.String("out", "out/demo-storage",
		"`folder` for report.html, report.md, result.json and the machine's logs; emptied first")
	return program.Command("show what the owner of a disk reads, and what he is refused",
		flags, usage, func() (program.Run, error) {
			d := &demo{out: *out, say: program.Progress(os.Stdout)}
			return program.Within(limit, d.run), nil
		})
}

func (d *demo) run(ctx context.Context) (err error) {
	if d.out, err = program.Folder(d.out); err != nil {
		return err
	}

	log, closeLog, err := program.Log(d.out, "demo-storage.log")
	if err != nil {
		return err
	}
	defer closeLog()
	d.say("start a virtual machine with three disks, which are files of this host: two for " +
		"volumes, one plain")
	d.first, d.second, d.plain = d.disk("first"), d.disk("second"), d.disk("plain")
	d.machine, err = disk.Start(ctx, disk.Options{
		Disks: []disk.Disk{d.first, d.second, d.plain}, Dir: filepath.Join(d.out, "machine"),
		Log: log,
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.machine.Close()) }()

	if err := d.begin(ctx); err != nil {
		return err
	}
	if err := d.show(ctx); err != nil {
		return err
	}

	return d.finish()
}

// begin starts the result.
func (d *demo) begin(ctx context.Context) error {
	root, err := lab.Root()
	if err != nil {
		return err
	}
	if d.result, err = bench.New(d.machine.Platform(), root); err != nil {
		return err
	}
	if d.result.Kernel, err = d.machine.Kernel(ctx); err != nil {
		return err
	}
	d.report = &report.Report{
		Title: "A disk that belongs to somebody else",
		Lead: "A virtual machine whose disks are files of its host. The same file was " +
			"written to a plain disk and to a volume; then the disks' owner did what he could.",
		Result:     d.result,
		Labels:     map[string]string{caseRewrap: "Key wrapped anew while fio writes"},
		SidesTitle: "What the disks' owner reads", RefusedWhat: "attempts of the disks' owner",
		Notes: notes,
	}
	return nil
}

// show is the demonstration, step by step.
func (d *demo) show(ctx context.Context) error {
	for _, step := range []func(context.Context) error{d.write, d.look, d.rewrap, d.attack} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	return nil
}

// finish writes the results; the error names what should not have been.
func (d *demo) finish() error {
	err := program.Finish(d.out, d.report, os.Stdout)
	d.say("open %s in a browser: it shows the raw bytes of both disks next to each other",
		filepath.Join(d.out, "report.html"))
	return err
}

var notes = []string{
	"The disks are raw files that the machine's owner reads and changes while it runs; the " +
		"machine's own view is what the driver for CSI answers, called as a kubelet calls it.",
	"The dump of the volume's disk begins where the file's first block is: 4 MiB of header and " +
		"records, then the block's place in the file system.",
	"After each attempt the disk was compared with what it was before it: nothing was written. " +
		"Then it was put back as it was, and the volume opened with its file unchanged.",
	"The key-encryption keys are files on the machine, which is right for a " +
		"demonstration and for " +
		"nothing else: docs/storage.md.",
}
