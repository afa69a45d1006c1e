package conformance

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/kubeveil/kubeveil/e2e/conformance"
	"github.com/kubeveil/kubeveil/e2e/vm"
	"github.com/kubeveil/kubeveil/pkg/bench"
)

// onPair is onMachines for the tests of linked clusters. It makes two clusters and links them.
func onPair(ctx context.Context, a arguments, root string,
	o conformance.RunConfig) (report *conformance.Report, platform string, err error) {
	archive := filepath.Join(root, "out/images/conformance-sites.tar")
	if _, err := os.Stat(archive); err != nil {
		return nil, "", fmt.Errorf("%w: run `%s` first", err, a.build())
	}
	p, err := vm.NewPair(ctx, vm.ClusterConfig{Nodes: a.nodes / 2, ServiceProxy: a.serviceProxy,
		ProxyMode: a.proxyMode, HostRouting: a.hostRouting, Policy: a.policy,
		Images: []string{archive}, Dir: filepath.Join(a.out, "machines"), Log: o.Log})
	if err != nil {
		return nil, "", err
	}
	defer func() { err = errors.Join(err, end(p, o.Log, report)) }()

	for _, c := range []*vm.Cluster{p.A, p.B} {
		if err := takePods(ctx, c); err != nil {
			return nil, "", err
		}
	}
	o.Kubeconfig = filepath.Join(a.out, "machines", "kubeconfig")
	if err := p.WriteKubeconfig(o.Kubeconfig); err != nil {
		return nil, "", err
	}
	platform = p.A.Platform()
	o.Emulated = platform == bench.Emulated
	if !o.EBPF && o.ProxyMode == "" {
		o.ProxyMode = vm.ProxyNFTables
	}

	report, err = conformance.Run(ctx, o)
	return report, platform, err
}
