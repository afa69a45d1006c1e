// Package demostorage runs e2e/demo/storage. It writes report.html, report.md and result.json into
// --out. The exit status is 1 if a promise did not hold. Start reading at Command.
package demostorage

import (
	"context"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/kubeveil/kubeveil/e2e/cmd/kvlab/internal/program"
	"github.com/kubeveil/kubeveil/e2e/demo/storage"
	"github.com/kubeveil/kubeveil/internal/commandline"
	"github.com/kubeveil/kubeveil/pkg/bench/report"
)

// limit bounds a run that hangs.
const limit = 20 * time.Minute

const usage = `Show what the owner of the disks sees of a virtual machine's encrypted volumes, and
which attacks are refused. It takes about a minute.

Usage: kvlab demo storage [flags]

Example:
  kvlab demo storage --out /tmp/demo   write the reports and the machine's logs there

Flags:
`

// Command returns the verb.
func Command() *cobra.Command {
	flags := commandline.New("kvlab demo storage")
	out := flags.String("out", "out/demo-storage",
		"`folder` for report.html, report.md, result.json and the machine's logs; emptied first")
	return program.Command("Show what a disk's owner can read, and which attacks are refused",
		flags, usage, func() (program.Run, error) {
			say := program.Progress(os.Stdout)
			return program.Within(limit, func(ctx context.Context) error {
				return program.Show(*out, "the raw bytes of both disks next to each other", say,
					func(root, folder string) (*report.Report, error) {
						log, closeLog, err := program.Log(folder, "demo-storage.log")
						if err != nil {
							return nil, err
						}
						defer closeLog()
						return storage.Run(ctx, folder, root, log, say)
					})
			}), nil
		})
}
