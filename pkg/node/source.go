package node

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"

	"github.com/kubeveil/kubeveil/pkg/config"
	"github.com/kubeveil/kubeveil/pkg/kube"
	"github.com/kubeveil/kubeveil/pkg/service/probe"
	"github.com/kubeveil/kubeveil/pkg/source"
)

// checkServiceHost refuses a service address for the API server. Service addresses are unreachable
// for this node until a tunnel device exists, and the device waits for the table from the API
// server. addr is the address in the credentials; it is invalid if they have a host name, which
// other code checks.
func checkServiceHost(cfg config.Config, addr netip.Addr) error {
	if cfg.Source.Kind != config.SourceKubernetes {
		return nil
	}
	i := slices.IndexFunc(cfg.ServiceRanges,
		func(r netip.Prefix) bool { return r.Contains(addr.Unmap()) })
	if i < 0 {
		return nil
	}

	why := errors.New("set source.kubeconfig to another, or services.apiServers")
	if len(cfg.Services.APIServers) > 0 {
		// Entry 0 of the service table leads to the API servers before any list is read. Beside
		// another service proxy, veild can usually run without the service table. Here it cannot,
		// because its own connection needs entry 0.
		why = nil
		if cfg.ServiceProxy != config.ServiceProxyEBPF {
			why = probe.Check(cfg)
		}
	}
	if why == nil {
		return nil
	}
	return fmt.Errorf("the API server's address %s is a service's (%s): %w", addr,
		cfg.ServiceRanges[i], why)
}

// NewSource returns the source of the table. If that source is Kubernetes, the second result is the
// same client; otherwise it is nil. NewSource contacts no server and changes nothing.
func NewSource(cfg config.Config, log *slog.Logger) (source.Source, *kube.Client, error) {
	if cfg.Source.Kind == config.SourceSnapshot {
		return source.NewSnapshot(cfg.Source.File, cfg.TrustDisk, log), nil, nil
	}
	var open []string
	for _, s := range cfg.Sites {
		if s.Open() {
			open = append(open, s.Name)
		}
	}
	c, err := kube.New(kube.ClientConfig{Node: cfg.Node, Sites: open,
		Kubeconfig: cfg.Source.Kubeconfig, Log: log})
	if err != nil {
		return nil, nil, err
	}
	return c, c, checkServiceHost(cfg, c.Server().Addr())
}
