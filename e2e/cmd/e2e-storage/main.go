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
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/kubeveil/kubeveil/e2e/bench"
	"github.com/kubeveil/kubeveil/e2e/lab"
	"github.com/kubeveil/kubeveil/e2e/storage/cluster"
	"github.com/kubeveil/kubeveil/e2e/vm"
)

// image is the archive that `make image-csi` writes.
const image = "out/images/kubeveil-csi.tar"

func main() {
	out := flag.String("out", "out/e2e-storage", "`folder` for result.json and the machines' logs")
	limit := flag.Duration("limit", 60*time.Minute, "ends a run that hangs")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ctx, cancel := context.WithTimeoutCause(ctx, *limit, fmt.Errorf("e2e-storage did not end within %v", *limit))
	defer cancel()
	if err := run(ctx, *out); err != nil {
		fmt.Fprintln(os.Stderr, "e2e-storage:", err)
		os.Exit(1)
	}
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
	if out, err = filepath.Abs(out); err != nil {
		return err
	}
	// What an earlier run left must not be taken for this one's.
	if err := errors.Join(os.RemoveAll(out), os.MkdirAll(out, 0o755)); err != nil {
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
