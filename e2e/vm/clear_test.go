package vm

import (
	"encoding/json"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kubeveil/kubeveil/e2e/lab/cni"
	"github.com/kubeveil/kubeveil/internal/errtest"
)

// The reference network has the families that pods have, because the control run cannot prove
// anything about traffic that the reference network does not carry.
func TestClearNetworkHasTheFamiliesOfItsPods(t *testing.T) {
	pods4, pods6 := netip.MustParsePrefix("198.19.1.0/24"), netip.MustParsePrefix("fd42:1:0:1::/64")
	node := []netip.Addr{netip.MustParseAddr("198.18.0.11"), netip.MustParseAddr("fd42::b")}
	for name, tt := range map[string]struct {
		prefixes        []netip.Prefix
		subnets, routes []string
		between         []string
	}{
		"both": {[]netip.Prefix{pods4, pods6}, []string{pods4.String(), pods6.String()},
			[]string{"0.0.0.0/0", "::/0"}, []string{"198.19.1.0/24 via 198.18.0.11",
				"fd42:1:0:1::/64 via fd42::b"}},
		"IPv4 only": {[]netip.Prefix{pods4}, []string{pods4.String()}, []string{"0.0.0.0/0"},
			[]string{"198.19.1.0/24 via 198.18.0.11"}},
		"IPv6 only": {[]netip.Prefix{pods6}, []string{pods6.String()}, []string{"::/0"},
			[]string{"fd42:1:0:1::/64 via fd42::b"}},
	} {
		t.Run(name, func(t *testing.T) {
			text, err := cni.Clear(tt.prefixes, 1400)
			errtest.Must(t, err)

			// got has the fields that the reference plugins ptp and host-local read.
			var got struct {
				CNIVersion, Name string
				Plugins          []struct {
					Type string
					MTU  int
					IPAM struct {
						Type    string
						Ranges  [][]struct{ Subnet string }
						Routes  []struct{ Dst string }
						DataDir string
					}
				}
			}
			errtest.Must(t, json.Unmarshal(text, &got))

			if len(got.Plugins) != 1 || got.Plugins[0].Type != "ptp" ||
				got.Plugins[0].MTU != 1400 || got.Plugins[0].IPAM.Type != "host-local" ||
				got.CNIVersion == "" || got.Name == "" {
				t.Fatalf("%s", text)
			}

			ipam := got.Plugins[0].IPAM
			var subnets, routes []string
			for _, set := range ipam.Ranges {
				if len(set) != 1 {
					t.Fatalf("a pod has an address of each set, so each family has one of "+
						"its own: %s", text)
				}
				subnets = append(subnets, set[0].Subnet)
			}

			for _, r := range ipam.Routes {
				routes = append(routes, r.Dst)
			}

			if diff := cmp.Diff([][]string{tt.subnets, tt.routes, tt.between},
				[][]string{subnets, routes, clearRoutes(tt.prefixes, node)}); diff != "" {
				t.Errorf("subnets, routes and routes between nodes: %s", diff)
			}
		})
	}
}
