package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"sort"
	"strings"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/pod"
)

// pluginType is the "type" in the CNI configuration.
const pluginType = "veil"

// ipamType is the only IPAM plugin that veil supports. GC reads the files in which host-local
// stores its reservations.
const ipamType = "host-local"

// netConf is veil's part of the CNI configuration.
type netConf struct {
	CNIVersion string          `json:"cniVersion"`
	Name       string          `json:"name"`
	Type       string          `json:"type"`
	MTU        int             `json:"mtu"`
	IPAM       ipamConf        `json:"ipam"`
	DNS        types.DNS       `json:"dns"`
	PrevResult json.RawMessage `json:"prevResult"`
	// Capabilities are the arguments that the configuration asks for, and RuntimeConfig has those
	// that the runtime passes.
	Capabilities  json.RawMessage `json:"capabilities"`
	RuntimeConfig json.RawMessage `json:"runtimeConfig"`
	// Valid is the list of valid attachments for GC. It is nil if the key is absent.
	Valid json.RawMessage `json:"cni.dev/valid-attachments"`
	// Older is the same list under the key that libcni used before 1.2.3.
	Older json.RawMessage `json:"cni.dev/attachments"`
}

// ipamConf is the part of host-local's configuration that veil reads.
type ipamConf struct {
	Type    string `json:"type"`
	DataDir string `json:"dataDir"`
	Subnet  string `json:"subnet"`
	Ranges  [][]struct {
		Subnet string `json:"subnet"`
	} `json:"ranges"`
	Routes []struct {
		Dst string `json:"dst"`
	} `json:"routes"`
}

// knownKeys are the keys that the configuration may have: the keys of veil, and the keys that the
// specification allows runtimes to add.
var knownKeys = []string{
	"args", "capabilities", "cniVersion", "cniVersions", "dns", "ipam", "mtu", "name", "prevResult",
	"runtimeConfig", "type",
}

// parse parses the configuration but does not validate it, so that a mistake in the configuration
// does not prevent DEL.
func parse(data []byte) (*netConf, error) {
	c := &netConf{}
	if err := json.Unmarshal(data, c); err != nil {
		return nil, coded(types.ErrDecodingFailure, fmt.Errorf("read CNI configuration: %w", err))
	}
	return c, nil
}

// parseValid parses the configuration and validates it.
func parseValid(data []byte) (*netConf, error) {
	c, err := parse(data)
	if err != nil {
		return nil, err
	}
	return c, c.validate(data)
}

// validate returns one error with every problem of the configuration.
func (c *netConf) validate(data []byte) error {
	var errs []error
	add := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	errs = append(errs, unknownKeys(data)...)
	if c.Type != pluginType {
		add(`"type" is %q: write "type": %q`, c.Type, pluginType)
	}
	switch {
	case c.MTU == 0:
		add(`"mtu" is missing: write the MTU of pods in bytes, as "veilctl mtu" computes it`)
	case c.MTU < pod.MinMTU4 || c.MTU > pod.MaxMTU:
		add(`"mtu" is %d: write a number of bytes from %d to %d`, c.MTU, pod.MinMTU4, pod.MaxMTU)
	}
	errs = append(errs, c.IPAM.validate(c.MTU)...)
	if err := errors.Join(errs...); err != nil {
		lines := strings.ReplaceAll(err.Error(), "\n", "; ")
		return coded(types.ErrInvalidNetworkConfig,
			fmt.Errorf("CNI configuration of network %q, plugin veil: %s", c.Name, lines))
	}
	return nil
}

func unknownKeys(data []byte) []error {
	var raw map[string]json.RawMessage
	if err := json.NewDecoder(bytes.NewReader(data)).Decode(&raw); err != nil {
		return []error{err}
	}
	var errs []error
	for key := range raw {
		if !slices.Contains(knownKeys, key) && !strings.HasPrefix(key, "cni.dev/") {
			errs = append(errs, fmt.Errorf("unknown key %q: take it out; veil knows %s", key,
				strings.Join(knownKeys, ", ")))
		}
	}
	sort.Slice(errs, func(i, j int) bool { return errs[i].Error() < errs[j].Error() })
	return errs
}

func (c *ipamConf) validate(mtu int) []error {
	var errs []error
	add := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	switch c.Type {
	case ipamType:
	case "":
		return []error{
			fmt.Errorf(
				`"ipam" is missing: write "ipam": {"type": %q, "dataDir": %q, "ranges": [[{"subnet": "<this node's pod prefix>"}]]}`, ipamType, abi.IPAMDir)}
	default:
		return []error{fmt.Errorf(`"ipam.type" is %q: write %q, the only one that veil works with`,
			c.Type, ipamType)}
	}

	if !filepath.IsAbs(c.DataDir) || filepath.Clean(c.DataDir) == "/" {
		add(
			`"ipam.dataDir" is %q: write %q; host-local's own default is on the disk and outlives a reboot, which no pod does`, c.DataDir, abi.IPAMDir)
	}
	prefixes, err := c.prefixes()
	if err != nil {
		errs = append(errs, err)
	}

	for _, p := range prefixes {
		if p.Addr().Is6() && mtu != 0 && mtu < abi.MinPodMTU6 {
			add(
				"\"mtu\" is %d, but pods get IPv6 addresses from %s: IPv6 needs %d (RFC 8200 "+
					"section 5), so an underlay of %d or more", mtu, p, abi.MinPodMTU6,
				abi.MinPodMTU6+60)
		}
	}

	for _, r := range c.Routes {
		if r.Dst != "0.0.0.0/0" && r.Dst != "::/0" {
			add(
				`"ipam.routes" has %q: take it out; a pod has only default routes, all else is routed by the node`, r.Dst)
		}
	}

	return errs
}

// prefixes returns the prefixes from which host-local assigns addresses.
func (c *ipamConf) prefixes() ([]netip.Prefix, error) {
	var subnets []string
	if c.Subnet != "" {
		subnets = append(subnets, c.Subnet)
	}
	for _, set := range c.Ranges {
		for _, r := range set {
			subnets = append(subnets, r.Subnet)
		}
	}
	if len(subnets) == 0 {
		return nil, errors.New(
			`"ipam.ranges" is empty: write "ranges": [[{"subnet": "<this node's pod prefix>"}]]`)
	}
	var prefixes []netip.Prefix
	for _, s := range subnets {
		p, err := netip.ParsePrefix(s)
		if err != nil {
			return nil, fmt.Errorf(
				`"ipam.ranges" has subnet %q: write a prefix such as 10.244.1.0/24`, s)
		}
		prefixes = append(prefixes, p.Masked())
	}
	return prefixes, nil
}
