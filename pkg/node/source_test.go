package node

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/pkg/config"
	"github.com/kubeveil/kubeveil/pkg/service/probe"
)

func TestCheckServiceHost(t *testing.T) {
	inCluster := config.Config{
		Source: config.Source{Kind: config.SourceKubernetes},
		ServiceRanges: []netip.Prefix{netip.MustParsePrefix("198.18.128.0/20"),
			netip.MustParsePrefix("fd42:2::/112")},
	}
	withFile, snapshot := inCluster, inCluster
	withFile.Source.Kubeconfig = "/etc/kubeveil/kubeconfig"
	snapshot.Source.Kind = config.SourceSnapshot

	for _, tt := range []struct {
		name    string
		cfg     config.Config
		host    string
		refused bool
	}{
		{"a service address", inCluster, "198.18.128.1", true},
		{"a service address, ipv6", inCluster, "fd42:2::1", true},
		{"an address of its own", inCluster, "198.18.0.2", false},
		{"a name", inCluster, "api.example", false},
		{"outside a pod", inCluster, "", false},
		{"a kubeconfig that names a service address", withFile, "198.18.128.1", true},
		{"a kubeconfig that names its own", withFile, "198.18.0.2", false},
		{"a snapshot", snapshot, "198.18.128.1", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			addr, _ := netip.ParseAddr(tt.host)
			err := checkServiceHost(tt.cfg, addr)
			if (err != nil) != tt.refused {
				t.Fatalf("got %v, refused should be %t", err, tt.refused)
			}
			if err != nil && !strings.Contains(err.Error(), "set source.kubeconfig") {
				t.Errorf("%v does not say what to write instead", err)
			}
		})
	}
}

// Beside another proxy, entry 0 leads to API servers at boot if this machine can have one.
func TestCheckServiceHostBesideAnotherProxy(t *testing.T) {
	cfg := config.Config{
		Source:        config.Source{Kind: config.SourceKubernetes},
		ServiceProxy:  config.ServiceProxyNone,
		ServiceRanges: []netip.Prefix{netip.MustParsePrefix("198.18.128.0/20")},
		Services: config.Services{
			APIServers: []netip.AddrPort{netip.MustParseAddrPort("198.18.0.2:6443")}},
	}
	can, err := probe.Check(cfg), checkServiceHost(cfg, netip.MustParseAddr("198.18.128.1"))
	if (err == nil) != (can == nil) || err != nil && !strings.Contains(err.Error(), can.Error()) {
		t.Errorf("got %v, and of the machine %v", err, can)
	}
	errtest.Check(t, checkServiceHost(cfg, netip.MustParseAddr("198.18.0.2")))
	cfg.ServiceProxy = config.ServiceProxyEBPF
	if err := checkServiceHost(cfg, netip.MustParseAddr("198.18.128.1")); err != nil {
		t.Errorf("with all services: %v", err)
	}
}
