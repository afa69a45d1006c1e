package pod

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/pkg/cluster"
	"github.com/kubeveil/kubeveil/pkg/config"
	"github.com/kubeveil/kubeveil/pkg/internal/nl"
)

// ErrClosed matches the error of Gate for a node that is not ready for pods.
var ErrClosed = errors.New("node is not ready for pods")

// Gate is whether a pod may be attached: the plaintext guard is in force, the
// base routes are there, and veild has said since boot that it applied both.
// The error says which part is absent and what to do; it matches ErrClosed.
// podPrefixes are what IPAM gives addresses from: the families of the base
// routes are theirs, and each must lie in a cluster range that is closed.
// Gate looks at the kernel and needs no living daemon.
func (p Paths) Gate(podPrefixes []netip.Prefix) error {
	marker, err := config.ReadMarker(p.ReadyFile)
	if err != nil {
		return fmt.Errorf("%w: %w; is veild running?", ErrClosed, err)
	}
	for _, prefix := range podPrefixes {
		if !has(marker.Families, prefix.Addr()) {
			return fmt.Errorf("%w: pods get addresses from %s, but %s does not say that veild has applied that family; is the range in its clusterRanges?", ErrClosed, prefix, p.ReadyFile)
		}
	}
	routes := func() error { return gateRoutes(marker.Families, podPrefixes) }
	for _, check := range []func() error{p.gatePins, gateTable, routes} {
		if err := check(); err != nil {
			return fmt.Errorf("%w: %w", ErrClosed, err)
		}
	}
	return nil
}

func has(f cluster.Families, a netip.Addr) bool { return a.Is4() && f.V4 || a.Is6() && f.V6 }

func (p Paths) gatePins() error {
	for _, name := range []string{config.PinGuardIngress, config.PinGuardEgress, config.PinPodIngress, config.PinPodAddrs} {
		if _, err := os.Stat(p.pin(name)); err != nil {
			if errors.Is(err, fs.ErrNotExist) {
				return fmt.Errorf("guard: pinned BPF object %s does not exist; is veild running? it pins it again when it starts", p.pin(name))
			}
			return fmt.Errorf("guard: %w", err)
		}
	}
	return nil
}

func gateTable() error {
	c, err := nftables.New()
	if err != nil {
		return fmt.Errorf("guard: open nftables: %w", err)
	}
	if _, err := c.ListTableOfFamily(config.NFTGuardTable, nftables.TableFamilyINet); err != nil {
		if errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("guard: nft table inet %s does not exist; is veild running? it restores it", config.NFTGuardTable)
		}
		return fmt.Errorf("guard: read nft table inet %s: %w", config.NFTGuardTable, err)
	}
	return nil
}

// gateRoutes looks at the rules of the families that veild applied, and at the
// closed ranges that hold the pods' prefixes.
func gateRoutes(families cluster.Families, podPrefixes []netip.Prefix) error {
	h, err := nl.Open()
	if err != nil {
		return err
	}
	defer h.Close()
	for _, family := range []struct {
		applied bool
		id      int
		name    string
	}{{families.V4, nl.FamilyV4, "IPv4"}, {families.V6, nl.FamilyV6, "IPv6"}} {
		if !family.applied {
			continue
		}
		if err := gateRules(h, family.id, family.name); err != nil {
			return err
		}
	}
	for _, prefix := range podPrefixes {
		if err := gateRange(h, prefix); err != nil {
			return err
		}
	}
	return nil
}

func gateRules(h *nl.Handle, family int, name string) error {
	rules, err := h.RuleList(family)
	if err != nil {
		return fmt.Errorf("list %s rules: %w", name, err)
	}
	var pod, tunnel bool
	for _, r := range rules {
		pod = pod || r.Priority == config.RulePrefPod && r.Table == config.TablePod && r.Mark == config.PodMark
		tunnel = tunnel || r.Priority == config.RulePrefTunnel && r.Mark == config.TunnelMark
	}
	switch {
	case !pod:
		return fmt.Errorf("%s rule %d (packets from pods to table %d) does not exist; is veild running? it restores it", name, config.RulePrefPod, config.TablePod)
	case !tunnel:
		return fmt.Errorf("%s rule %d (packets of tunnels) does not exist; is veild running? it restores it", name, config.RulePrefTunnel)
	}
	return nil
}

// gateRange finds the unreachable route of a cluster range that holds prefix.
func gateRange(h *nl.Handle, prefix netip.Prefix) error {
	want := &nl.Route{Table: config.TablePod, Protocol: config.RouteProtoNode, Type: unix.RTN_UNREACHABLE}
	routes, err := listRoutes(h, family(prefix.Addr()), want, nl.FilterTable|nl.FilterProtocol|nl.FilterType)
	if err != nil {
		return fmt.Errorf("list routes of table %d: %w", config.TablePod, err)
	}
	for _, r := range routes {
		if r.Type != unix.RTN_UNREACHABLE || r.Protocol != config.RouteProtoNode || r.Dst == nil {
			continue
		}
		ones, _ := r.Dst.Mask.Size()
		if ones <= prefix.Bits() && r.Dst.Contains(prefix.Addr().AsSlice()) {
			return nil
		}
	}
	return fmt.Errorf("table %d has no unreachable route for a cluster range that holds pod prefix %s; is veild running, and is %s in its clusterRanges?", config.TablePod, prefix, prefix)
}
