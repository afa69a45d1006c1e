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

// onMachines runs the specs on machines that are there for this run alone. It gives the report also when the machines
// could not be removed in good order.
func onMachines(ctx context.Context, a arguments, root string, o conformance.Options) (report *conformance.Report, platform string, err error) {
	archive := filepath.Join(root, "out/images/conformance.tar")
	if _, err := os.Stat(archive); err != nil {
		return nil, "", fmt.Errorf("%w: run `hack/build-conformance.sh` first", err)
	}
	c, err := vm.New(ctx, vm.Options{Nodes: a.nodes, Images: []string{archive}, Dir: filepath.Join(a.out, "machines"), Log: o.Log})
	if err != nil {
		return nil, "", err
	}
	defer func() {
		// No verdict: some specs are about what is not of the cluster, and send it as they like.
		wire, end := c.Close()
		o.Log.Info("the oracle on the wire has ended", "frames", wire.Frames, "plaintext", wire.Plaintext, "kinds", wire.Kinds)
		err = errors.Join(err, end)
	}()
	platform = bench.Emulated
	if c.Accel == vm.KVM {
		platform = bench.VM
	}
	o.Emulated = platform == bench.Emulated
	o.Kubeconfig, o.Registry = c.Kubeconfig(), conformance.Registry
	report, err = conformance.Run(ctx, o)
	return report, platform, err
}
