package conformance

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/kubeveil/kubeveil/e2e/cluster/storage"
	"github.com/kubeveil/kubeveil/e2e/cluster/storage/claims"
	"github.com/kubeveil/kubeveil/e2e/conformance"
	"github.com/kubeveil/kubeveil/e2e/disk"
	"github.com/kubeveil/kubeveil/e2e/vm"
	"github.com/kubeveil/kubeveil/pkg/bench"
	"github.com/kubeveil/kubeveil/pkg/leak"
	"github.com/kubeveil/kubeveil/pkg/remote"
)

// diskSize is the size of the disk for volumes, bytes; it is a sparse file.
const diskSize = 16 << 30

// onMachines runs the specs on machines that are there for this run alone. It returns the report
// also when the machines could not be removed in good order.
func onMachines(ctx context.Context, a arguments, root string,
	o conformance.RunConfig) (report *conformance.Report, platform string, err error) {
	archive := filepath.Join(root, "out/images/conformance.tar")
	if a.clusterPolicies {
		archive = filepath.Join(root, "out/images/conformance-policy.tar")
	}
	if _, err := os.Stat(archive); err != nil {
		return nil, "", fmt.Errorf("%w: run `%s` first", err, a.build())
	}

	m := vm.ClusterConfig{Nodes: a.nodes, ServiceProxy: a.serviceProxy, ProxyMode: a.proxyMode,
		HostRouting: a.hostRouting, Policy: a.policy, Images: []string{archive},
		Dir: filepath.Join(a.out, "machines"), Log: o.Log}
	disk := disk.Disk{Serial: "volumes", Path: filepath.Join(a.out, "volumes.img"),
		Size: diskSize}
	if a.volumes {
		driver := filepath.Join(root, "out/images/kubeveil-csi.tar")
		if _, err := os.Stat(driver); err != nil {
			return nil, "", fmt.Errorf("%w: run `make image-csi` first", err)
		}
		if err := disk.Make(); err != nil {
			return nil, "", err
		}
		defer func() { err = errors.Join(err, os.Remove(disk.Path)) }()
		// One machine: the disk is one, and a volume does not leave its node.
		m.Nodes, m.Images, m.QEMU = 1, append(m.Images, driver), disk.Arguments()
	}

	c, err := vm.New(ctx, m)
	if err != nil {
		return nil, "", err
	}
	defer func() { err = errors.Join(err, end(c, o.Log, report)) }()

	if err := takePods(ctx, c); err != nil {
		return nil, "", err
	}

	platform = c.Platform()
	if !o.EBPF && o.ProxyMode == "" {
		o.ProxyMode = vm.ProxyNFTables
	}

	o.Emulated = platform == bench.Emulated
	o.Kubeconfig, o.Registry = c.Kubeconfig(), conformance.Registry
	if a.volumes {
		if err := storage.Prepare(ctx, &storage.Session{Client: claims.Client{Cluster: c},
			Disk:      disk,
			Manifests: filepath.Join(root, "manifests"), Out: os.Stdout}); err != nil {
			return nil, "", err
		}
	}

	if a.clusterPolicies {
		if err := definePolicies(ctx, c, root); err != nil {
			return nil, "", err
		}
	}

	report, err = conformance.Run(ctx, o)
	if a.volumes {
		keepLogs(ctx, c, o)
	}

	return report, platform, err
}

// end removes a cluster or a pair of clusters, and adds what its oracle saw to the report, unless
// that is nil.
func end(c interface{ Close() (leak.Result, error) }, log *slog.Logger,
	report *conformance.Report) error {
	wire, err := c.Close()
	log.Info("the oracle on the wire has ended", "frames", wire.Frames,
		"plaintext", wire.Plaintext, "missed", wire.Dropped, "kinds", wire.Kinds)
	for _, e := range wire.Examples {
		log.Info("a frame that is not on the allow-list", "kind", e.Kind, "link", e.Link,
			"what", e.Detail)
	}
	if report != nil {
		report.Wire = &wire
	}
	return err
}

// definePolicies installs the definition of ClusterNetworkPolicy that the tests are of.
func definePolicies(ctx context.Context, c *vm.Cluster, root string) error {
	definition, err := os.ReadFile(filepath.Join(root, policyFolder, "definition.yaml"))
	if err != nil {
		return err
	}
	return c.Apply(ctx, definition)
}

// logPatience bounds how long logs may take to be fetched, of a machine that may be ill.
const logPatience = 3 * time.Minute

// keepLogs keeps the logs of the driver, its side-cars and the kubelet beside the logs of the
// specs, also after an interrupt. It only logs a failure.
func keepLogs(ctx context.Context, c *vm.Cluster, o conformance.RunConfig) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), logPatience)
	defer cancel()
	keep := func(name string, said []byte, err error) {
		err = errors.Join(err, os.WriteFile(filepath.Join(o.Dir, name), said, 0o644))
		if err != nil {
			o.Log.Warn("a log was not kept whole", "log", name, "error", err)
		}
	}
	// A container that has not started has no log.
	said, err := c.Kubectl(ctx, "-n", "kube-system", "logs",
		"--selector=app.kubernetes.io/component in (veil-csi, snapshot-controller)",
		"--all-containers", "--prefix", "--ignore-errors", "--tail=-1", "--max-log-requests=20")
	keep("driver.log", said, err)
	said, err = c.Machines[0].Exec(ctx, "journalctl --no-pager --unit kubelet --output short-iso")
	keep("kubelet.log", said, err)
}

// takePods waits until all machines take pods: for a moment after a node is Ready it has the taint
// of one that is not, and specs are chosen by how many nodes there are.
func takePods(ctx context.Context, c *vm.Cluster) error {
	access := remote.Access{Kubeconfig: c.Kubeconfig()}
	k, err := remote.Connect(ctx, access, remote.ConnectConfig{})
	if err != nil {
		return err
	}
	var names []string
	for _, m := range c.Machines {
		names = append(names, m.Name)
	}
	return k.WaitNodesReady(ctx, 2*time.Minute, names...)
}
