package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/kubeveil/kubeveil/e2e/bench"
	"github.com/kubeveil/kubeveil/e2e/conformance"
	"github.com/kubeveil/kubeveil/e2e/vm"
)

// remoteArchive is where the archive of images lies on a machine while it is imported.
const remoteArchive = "/var/lib/conformance.tar"

// onMachines runs the specs on machines that are there for this run alone. It gives the report also when the machines
// could not be removed in good order.
func onMachines(ctx context.Context, a arguments, root string, o conformance.Options) (report *conformance.Report, platform string, err error) {
	archive := filepath.Join(root, "out/images/conformance.tar")
	if _, err := os.Stat(archive); err != nil {
		return nil, "", fmt.Errorf("%w: run `hack/build-conformance.sh` first", err)
	}
	c, err := vm.New(ctx, vm.Options{Nodes: a.nodes, Dir: filepath.Join(a.out, "machines"), Log: o.Log})
	if err != nil {
		return nil, "", err
	}
	defer func() {
		_, end := c.Close()
		err = errors.Join(err, end)
	}()
	if err := load(ctx, c, archive); err != nil {
		return nil, "", err
	}
	platform = bench.Emulated
	if c.Accel == vm.KVM {
		platform = bench.VM
	}
	o.Kubeconfig, o.Registry = c.Kubeconfig(), conformance.Registry
	report, err = conformance.Run(ctx, o)
	return report, platform, err
}

// load gives the images to all machines.
func load(ctx context.Context, c *vm.Cluster, archive string) error {
	loaded := make(chan error, len(c.Machines))
	for _, m := range c.Machines {
		go func() {
			if err := m.PutFile(ctx, remoteArchive, archive); err != nil {
				loaded <- err
				return
			}
			_, err := m.Exec(ctx, fmt.Sprintf("ctr -n k8s.io images import %[1]s && rm %[1]s", remoteArchive))
			loaded <- err
		}()
	}
	var errs []error
	for range c.Machines {
		errs = append(errs, <-loaded)
	}
	return errors.Join(errs...)
}
