package cni

import (
	"encoding/json"
	"net/netip"
)

// Clear returns the configuration of the reference network for a node with these pod prefixes: the
// plugins ptp and host-local.
func Clear(podPrefixes []netip.Prefix, mtu int) ([]byte, error) {
	var ranges [][]map[string]string
	var routes []map[string]string
	for _, p := range podPrefixes {
		ranges = append(ranges, []map[string]string{{"subnet": p.String()}})
		dst := "0.0.0.0/0"
		if p.Addr().Is6() {
			dst = "::/0"
		}
		routes = append(routes, map[string]string{"dst": dst})
	}
	return json.MarshalIndent(map[string]any{
		"cniVersion": "1.0.0",
		"name":       "clear",
		"plugins": []any{map[string]any{
			"type": "ptp",
			"mtu":  mtu,
			"ipam": map[string]any{"type": "host-local", "dataDir": "/run/clear",
				"ranges": ranges, "routes": routes},
		}},
	}, "", "  ")
}
