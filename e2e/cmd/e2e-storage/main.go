// E2e-storage runs the cases of the CSI driver (e2e/storage/cluster) on a cluster of virtual machines that it makes and removes, with Kubeveil's
// network, and writes result.json into -out. Exit status 1: a case failed, or the run could not be made. Start reading at run.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/kubeveil/kubeveil/e2e/bench"
	"github.com/kubeveil/kubeveil/e2e/cmd/internal/program"
	"github.com/kubeveil/kubeveil/e2e/lab"
	"github.com/kubeveil/kubeveil/e2e/storage/cluster"
	"github.com/kubeveil/kubeveil/e2e/vm"
)

// image is the archive that `make image-csi` writes.
const image = "out/images/kubeveil-csi.tar"

const usage = `e2e-storage runs the cases of the CSI driver on a virtual machine that it makes and removes.

Usage: e2e-storage [flags]

Example:
  e2e-storage -out /tmp/volumes        result.json and the machine's logs go there

Flags:
`

func main() {
	flags := flag.NewFlagSet("e2e-storage", flag.ContinueOnError)
	out := flags.String("out", "out/e2e-storage", "`folder` for result.json and the machine's logs; emptied first")
	limit := flags.Duration("limit", 60*time.Minute, "ends a run that hangs")
	program.Main(flags, usage, func() (program.Run, error) {
		return program.Within(*limit, func(ctx context.Context) error { return run(ctx, *out) }), nil
	})
}

func run(ctx context.Context, out string) (err error) {
	root, err := lab.Root()
	if err != nil {
		return err
	}
	archive := filepath.Join(root, image)
	if _, err := os.Stat(archive); errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s is missing: run `make image-csi` first", archive)
	}
	if out, err = program.Folder(out); err != nil {
		return err
	}
	logFile, err := os.Create(filepath.Join(out, "e2e-storage.log"))
	if err != nil {
		return err
	}
	defer logFile.Close()
	fmt.Println("starting a virtual machine …")
	c, err := vm.New(ctx, vm.Options{
		Nodes: 1, Images: []string{archive}, Dir: filepath.Join(out, "cluster"), Log: slog.New(slog.NewTextHandler(logFile, nil)),
	})
	if err != nil {
		return err
	}
	defer func() {
		_, end := c.Close()
		err = errors.Join(err, end)
	}()
	r, err := bench.New(c.Platform(), root)
	if err != nil {
		return err
	}
	r.Tests, err = cluster.Run(ctx, &cluster.Session{Cluster: c, Manifests: filepath.Join(root, "manifests"), Out: os.Stdout})
	err = errors.Join(err, r.Write(filepath.Join(out, "result.json")))
	fmt.Printf("%d passed, %d failed, %d skipped; %s\n", r.Tests.Passed, r.Tests.Failed, len(r.Tests.Skipped), filepath.Join(out, "result.json"))
	if r.Tests.Failed > 0 {
		err = errors.Join(err, fmt.Errorf("%d cases failed", r.Tests.Failed))
	}
	return err
}
