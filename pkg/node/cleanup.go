package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/sockdiag"
	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/cniplugin"
	"github.com/kubeveil/kubeveil/pkg/config"
	"github.com/kubeveil/kubeveil/pkg/conntrack"
	"github.com/kubeveil/kubeveil/pkg/guard"
	"github.com/kubeveil/kubeveil/pkg/hostnet"
	"github.com/kubeveil/kubeveil/pkg/kube"
	"github.com/kubeveil/kubeveil/pkg/passage"
	"github.com/kubeveil/kubeveil/pkg/pod"
	policies "github.com/kubeveil/kubeveil/pkg/policy/keeper"
	services "github.com/kubeveil/kubeveil/pkg/service/keeper"
	"github.com/kubeveil/kubeveil/pkg/source"
	"github.com/kubeveil/kubeveil/pkg/telemetry/admin"
	"github.com/kubeveil/kubeveil/pkg/tunnel/wgdevice"
)

// ErrRunning matches the error of Cleanup while a veild runs on this node.
var ErrRunning = errors.New("veild is running on this node: stop it first, because it " +
	"would restore everything")

// kubeLimit bounds the wait for the API server.
const kubeLimit = 5 * time.Second

// Cleanup removes Kubeveil's network from this node, in an order that leaks nothing. The CNI
// configuration is first, so that no pod starts. The pods' links, the tunnels and the routing
// follow, then the connections of the node's own processes to pods. The guard is last. After an
// error Cleanup continues as far as that leaks nothing. It may be repeated. It calls took for each
// removed object. It does not touch storage.
func Cleanup(ctx context.Context, cfg config.Config, log *slog.Logger,
	took func(what string)) error {
	if err := checkStopped(ctx, abi.AdminSocket); err != nil {
		return err
	}

	var errs []error
	step := func(f func() ([]string, error)) {
		what, err := f()
		for _, w := range what {
			took(w)
		}
		errs = append(errs, err)
	}
	step(func() ([]string, error) { return removeConflist(cfg.CNI.ConfDir) })
	step(func() ([]string, error) { return removeFile("marker", abi.ReadyFile) })

	step(removePods)
	step(removePolicies)
	step(removeLimit)
	step(func() ([]string, error) { return nil, passage.Remove() })
	step(services.Remove)
	step(func() ([]string, error) { return removeTunnels(ctx, log) })
	if err := errors.Join(errs...); err != nil {
		// The guard and its rules keep pods' packets from leaving in clear until here.
		return fmt.Errorf("routing and guard stay in force, because before them: %w", err)
	}

	step(removeRouting)
	step(func() ([]string, error) { return closeToPods(log) })
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("the guard stays in force, because before it: %w", err)
	}

	step(func() ([]string, error) { return guard.Remove(abi.BPFDir) })
	step(func() ([]string, error) { return removePlugins(abi.CNIBinDir) })
	step(func() ([]string, error) { return removeClaim(ctx, cfg, log) })

	for what, path := range map[string]string{"private key": cfg.KeyFile,
		"snapshot": cfg.SnapshotFile, "corrupt snapshot": cfg.SnapshotFile + source.CorruptSuffix} {
		step(func() ([]string, error) { return removeFile(what, path) })
	}

	if errors.Join(errs...) == nil {
		step(func() ([]string, error) { return removeRunFiles(abi.RunDir, log) })
		step(removeSocketDir)
	}

	return errors.Join(errs...)
}

// checkStopped returns an error that matches ErrRunning if a process listens on the admin socket,
// even if that process answers slowly or with an error.
func checkStopped(ctx context.Context, socket string) error {
	_, err := admin.Fetch(ctx, socket)
	switch {
	case err == nil:
		return ErrRunning
	case errors.Is(err, os.ErrNotExist), errors.Is(err, syscall.ECONNREFUSED):
		return nil
	}
	return fmt.Errorf("%w (its socket %s is served, but: %w)", ErrRunning, socket, err)
}

func removePolicies() ([]string, error) {
	was, err := policies.TurnOff(pod.DefaultPaths())
	if was && err == nil {
		return []string{"nftables table " + abi.NFTPolicyTable,
			"nftables table " + abi.NFTStampTable}, nil
	}
	return nil, err
}

func removeLimit() ([]string, error) {
	was, err := conntrack.Remove()
	if was && err == nil {
		return []string{"nftables table " + abi.NFTLimitTable}, nil
	}
	return nil, err
}

func removePods() (took []string, err error) {
	paths := pod.DefaultPaths()
	links, err := paths.Orphans(abi.NetworkName, nil)
	errs := []error{err}
	for _, link := range links {
		if err := paths.Detach(link); err != nil {
			errs = append(errs, err)
			continue
		}
		took = append(took, "pod link "+link)
	}
	return took, errors.Join(errs...)
}

func removeTunnels(ctx context.Context, log *slog.Logger) ([]string, error) {
	h, err := wgdevice.NewHost(wgdevice.HostConfig{Mode: wgdevice.ModeAuto, Log: log})
	if err != nil {
		return nil, err
	}
	return h.RemoveAll(ctx)
}

func removeRouting() ([]string, error) {
	h, err := hostnet.Open()
	if err != nil {
		return nil, err
	}
	defer h.Close()
	return h.Remove()
}

// closeToPods closes connections of this node's processes to addresses of the cluster. The kernel
// would retransmit an unanswered one, such as a probe of a deleted pod, for two minutes, in clear
// once the guard is gone (net.ipv4.tcp_syn_retries, tcp_retries2).
func closeToPods(log *slog.Logger) (took []string, err error) {
	ranges, err := guard.Ranges(abi.BPFDir)
	if err != nil || len(ranges) == 0 {
		return nil, err
	}
	inside := func(s sockdiag.Socket) bool {
		return slices.ContainsFunc(ranges,
			func(r netip.Prefix) bool { return r.Contains(s.Remote.Addr()) })
	}
	var errs []error
	closed := 0
	for _, protocol := range []uint8{unix.IPPROTO_TCP, unix.IPPROTO_UDP} {
		n, err := sockdiag.CloseIf(protocol, inside)
		closed += n
		if errors.Is(err, sockdiag.ErrNotSupported) {
			log.Warn("processes of this node may still send to pods, from now on in clear, "+
				"because their connections could not be closed", "error", err)
		} else {
			errs = append(errs, err)
		}
	}
	if closed > 0 {
		took = []string{fmt.Sprintf("%d connections of processes of this node to pods and services",
			closed)}
	}
	return took, errors.Join(errs...)
}

// removeClaim deletes this node's VeilNode. If the API server does not answer, it logs a warning:
// Kubernetes then deletes the VeilNode together with the Node.
func removeClaim(ctx context.Context, cfg config.Config, log *slog.Logger) ([]string, error) {
	if cfg.Source.Kind != config.SourceKubernetes || cfg.Node == "" {
		return nil, nil
	}
	c, err := kube.New(kube.ClientConfig{Node: cfg.Node, Kubeconfig: cfg.Source.Kubeconfig, Log: log})
	if err != nil {
		log.Warn("the VeilNode of this node stays until its Node is deleted", "error", err)
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(ctx, kubeLimit)
	defer cancel()
	removed, err := c.Remove(ctx)
	if err != nil {
		log.Warn("the VeilNode of this node stays until its Node is deleted", "error", err)
	}
	if !removed {
		return nil, nil
	}
	return []string{"VeilNode " + cfg.Node}, nil
}

func removePlugins(dir string) (took []string, err error) {
	paths, err := cniplugin.Remove(dir)
	for _, p := range paths {
		took = append(took, "CNI plugin "+p)
	}
	return took, err
}

func removeFile(what, path string) ([]string, error) {
	switch err := os.Remove(path); {
	case errors.Is(err, os.ErrNotExist):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("remove %s: %w", what, err)
	}
	return []string{what + " " + path}, nil
}

// removeSocketDir removes the directory of userspace WireGuard's sockets if it is empty and no
// veil-wg runs. veil-wg runs if WorkerDir exists.
func removeSocketDir() ([]string, error) {
	if _, err := os.Stat(abi.WorkerDir); err == nil {
		return nil, nil
	}
	switch err := os.Remove(abi.WireGuardSocketDir); {
	case err == nil:
		return []string{"directory " + abi.WireGuardSocketDir}, nil
	case errors.Is(err, os.ErrNotExist), errors.Is(err, syscall.ENOTEMPTY),
		errors.Is(err, syscall.EBUSY):
		return nil, nil
	default:
		return nil, fmt.Errorf("remove directory of sockets: %w", err)
	}
}

// runFiles are the network's files in RunDir. The locks and sockets of storage in RunDir stay,
// because storage works without the network.
var runFiles = []string{abi.ReadyFile, abi.PodDir, abi.IPAMDir, abi.WorkerDir,
	abi.KeyFile,
	abi.SnapshotFile, abi.SnapshotFile + source.CorruptSuffix, abi.AdminSocket}

// removeRunFiles removes the network's files from dir, which is RunDir. If dir is then empty, it
// removes dir; otherwise it logs the names that stay.
func removeRunFiles(dir string, log *slog.Logger) ([]string, error) {
	if _, err := os.Stat(dir); errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}

	var taken []string
	for _, f := range runFiles {
		name := filepath.Base(f)
		paths := []string{filepath.Join(dir, name)}
		halfWritten, err := filepath.Glob(filepath.Join(dir, "."+name+".tmp-*"))
		if err != nil {
			return taken, err
		}
		for _, path := range append(paths, halfWritten...) {
			if _, err := os.Lstat(path); errors.Is(err, os.ErrNotExist) {
				continue
			}
			// A running veil-wg recreates its folder of requests at any time.
			if err := os.RemoveAll(path); err != nil && !errors.Is(err, syscall.ENOTEMPTY) {
				return taken, fmt.Errorf("remove %s: %w", path, err)
			}
			taken = append(taken, path)
		}
	}

	switch err := os.Remove(dir); {
	case errors.Is(err, syscall.ENOTEMPTY):
		log.Info("what others keep stays", "folder", dir, "names", names(dir))
		return taken, nil
	case err != nil && !errors.Is(err, os.ErrNotExist):
		return taken, fmt.Errorf("remove %s: %w", dir, err)
	}

	return append(taken, dir), nil
}

// names returns the file names in dir, as far as they can be read.
func names(dir string) []string {
	var out []string
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return out
}
