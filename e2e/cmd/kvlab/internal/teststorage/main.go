// Package teststorage runs the cases of the CSI driver (e2e/cluster/storage), with Kubeveil's
// network, on a virtual machine that it creates and removes. It writes result.json into --out. Exit
// status 1 means that a case failed or that the run ended early. Start reading at run.
package teststorage

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/klog/v2"

	"github.com/kubeveil/kubeveil/e2e/cluster/release"
	"github.com/kubeveil/kubeveil/e2e/cluster/storage"
	"github.com/kubeveil/kubeveil/e2e/cluster/storage/claims"
	"github.com/kubeveil/kubeveil/e2e/cmd/kvlab/internal/program"
	"github.com/kubeveil/kubeveil/e2e/disk"
	"github.com/kubeveil/kubeveil/e2e/lab/buildtree"
	"github.com/kubeveil/kubeveil/e2e/vm"
	"github.com/kubeveil/kubeveil/internal/commandline"
	"github.com/kubeveil/kubeveil/pkg/bench"
)

// image is the archive that `make image-csi` writes.
const image = "out/images/kubeveil-csi.tar"

// diskSize has room for all volumes of the cases, bytes.
const diskSize = 4 << 30

const usage = `Run the cases of the CSI driver on a virtual machine made for the run.

Usage: kvlab test storage [flags]

Examples:
  kvlab test storage --out /tmp/volumes   write result.json and the machine's logs there
  kvlab test storage --run 'taken-over'   run one case, after the cases that install the driver
  kvlab test storage --releases out/releases --run 'ext4|^delete$|uninstall'
                                          volumes of a release, installed by Helm

Flags:
`

// Command returns the verb.
func Command() *cobra.Command {
	flags := commandline.New("kvlab test storage")
	out := flags.String("out", "out/e2e-storage",
		"`folder` for result.json and the machine's logs; emptied first")
	only := flags.String("run", "", "run the cases whose names match this `regular expression`; "+
		"the cases that install the driver always run")
	releases := flags.String("releases", "",
		"`folder` of hack/vm/releases.sh: install the chart of its release by Helm")
	limit := flags.Duration("limit", 60*time.Minute, "time after which the run is ended")
	return program.Command("Run the cases of volumes on a cluster",
		flags, usage, func() (program.Run, error) {
			pattern, err := regexp.Compile(*only)
			if err != nil {
				return nil, fmt.Errorf("--run: %w", err)
			}
			return program.Within(*limit, func(ctx context.Context) error {
				return run(ctx, *out, *releases, pattern)
			}), nil
		})
}

func run(ctx context.Context, out, releases string, only *regexp.Regexp) (err error) {
	root, err := buildtree.Root()
	if err != nil {
		return err
	}
	archive, chart := filepath.Join(root, image), storage.Chart{}
	images := []string{archive}
	if releases != "" {
		if releases, err = filepath.Abs(releases); err != nil {
			return err
		}
		chart = storage.Chart{Folder: release.Folder(filepath.Join(releases, "this")),
			Helm: filepath.Join(releases, "helm")}
		archive = chart.File("kubeveil-csi.tar")
		images = []string{archive, chart.File("kubeveil.tar")}
	}
	if _, err := os.Stat(archive); errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s is missing: run `make image-csi` first, or hack/vm/releases.sh",
			archive)
	}
	if out, err = program.Folder(out); err != nil {
		return err
	}

	log, closeLog, err := program.Log(out, "e2e-storage.log")
	if err != nil {
		return err
	}
	defer closeLog()

	// The client library logs connections that end. That belongs in the log file.
	klog.SetSlogLogger(log)
	disk := disk.Disk{Serial: "volumes", Path: filepath.Join(out, "volumes.img"), Size: diskSize}
	if err := disk.Make(); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.Remove(disk.Path)) }()
	fmt.Println("starting a virtual machine …")
	c, err := vm.New(ctx, vm.ClusterConfig{Nodes: 1, Images: images, QEMU: disk.Arguments(),
		NoVeil: releases != "", Dir: filepath.Join(out, "cluster"), Log: log})
	if err != nil {
		return err
	}
	defer func() {
		_, end := c.Close()
		err = errors.Join(err, end)
	}()

	s := &storage.Session{Client: claims.Client{Cluster: c}, Disk: disk,
		Manifests: filepath.Join(root, "manifests"), Chart: chart,
		Only: only, Out: os.Stdout}
	return cases(ctx, s, root, filepath.Join(out, "result.json"))
}

// cases runs the cases on the cluster and writes the result to path.
func cases(ctx context.Context, s *storage.Session, root, path string) error {
	c := s.Cluster
	r, err := bench.New(c.Platform(), root)
	if err != nil {
		return err
	}
	kernel, err := c.Machines[0].Exec(ctx, "uname -r")
	if err != nil {
		return err
	}
	r.Kernel = strings.TrimSpace(string(kernel))
	err = storage.Run(ctx, s, r)
	err = errors.Join(err, r.Write(path))
	for _, g := range r.Gates {
		fmt.Printf("%s: want %s, got %s\n", g.Name, g.Want, g.Got)
	}
	fmt.Printf("%d passed, %d failed, %d skipped; %s\n", r.Tests.Passed, r.Tests.Failed,
		len(r.Tests.Skipped), path)
	if r.Tests.Failed > 0 {
		err = errors.Join(err, fmt.Errorf("%d cases failed", r.Tests.Failed))
	}
	return err
}
