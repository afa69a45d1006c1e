package node_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/cluster"
	"github.com/kubeveil/kubeveil/pkg/config"
	"github.com/kubeveil/kubeveil/pkg/hostnet/underlay"
	"github.com/kubeveil/kubeveil/pkg/node"
)

func TestLinksInsideClusterRangesAreNamed(t *testing.T) {
	cfg := config.Config{ClusterRanges: nettest.Prefixes("198.19.0.0/16", "fd42:1::/48"),
		ServiceRanges: nettest.Prefixes("198.18.128.0/20", "fd42:2::/112"),
		Sites:         []cluster.Site{{Name: "b", PodRanges: nettest.Prefixes("198.51.100.0/24")}}}
	many := make([]underlay.Network, 7)
	for i := range many {
		many[i] = underlay.Network{Link: fmt.Sprint("br-", i),
			Network: netip.PrefixFrom(netip.AddrFrom4([4]byte{198, 19, byte(i), 0}), 24)}
	}

	one := func(network string) []underlay.Network {
		return []underlay.Network{{Link: "docker0", Network: netip.MustParsePrefix(network)}}
	}
	for name, tt := range map[string]struct {
		networks []underlay.Network
		want     string
	}{
		"none":                       {nil, ""},
		"elsewhere":                  {one("198.18.0.0/24"), ""},
		"around the cluster range":   {one("198.16.0.0/12"), ""},
		"a bridge":                   {one("198.19.2.0/25"), "docker0 (198.19.2.0/25, in clusterRanges)"},
		"a bridge, IPv6":             {one("fd42:1:0:2::/64"), "docker0 (fd42:1:0:2::/64, in clusterRanges)"},
		"the whole range":            {one("198.19.0.0/16"), "docker0 (198.19.0.0/16"},
		"an address":                 {one("198.19.2.1/32"), "docker0 (198.19.2.1/32"},
		"a bridge of services":       {one("198.18.129.0/24"), "198.18.129.0/24, in serviceRanges"},
		"an address of a service":    {one("198.18.128.10/32"), ""},
		"a bridge of a site":         {one("198.51.100.0/25"), "198.51.100.0/25, in podRanges of a site"},
		"more links than are listed": {many, "br-4 (198.19.4.0/24, in clusterRanges), and 2 more;"},
	} {
		t.Run(name, func(t *testing.T) {
			got := node.Overlaps(cfg, tt.networks)
			if !strings.Contains(got, tt.want) || (got == "") != (tt.want == "") {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}
