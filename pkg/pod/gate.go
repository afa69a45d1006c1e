package pod

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/nft"
	"github.com/kubeveil/kubeveil/internal/nl"
	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/cluster"
)

// ErrClosed matches the error of Gate for a node that is not ready for pods.
var ErrClosed = errors.New("node is not ready for pods")

// Gate returns nil if a pod may be attached: the guard is in force, the base routes exist, and
// veild has written its marker since boot. Otherwise the error matches ErrClosed, and names the
// missing part and a remedy. podPrefixes are the prefixes from which IPAM assigns addresses. veild
// must have applied their families, and each must lie in a closed cluster range. Gate reads the
// kernel and needs no running daemon.
func (p Paths) Gate(podPrefixes []netip.Prefix) error {
	marker, err := abi.ReadMarker(p.ReadyFile)
	if err != nil {
		return fmt.Errorf("%w: %w; is veild running?", ErrClosed, err)
	}
	for _, prefix := range podPrefixes {
		if !has(marker.Families, prefix.Addr()) {
			return fmt.Errorf("%w: pods get addresses from %s, but by %s veild has not applied "+
				"that family; is the range in clusterRanges?", ErrClosed, prefix, p.ReadyFile)
		}
	}
	routes := func() error { return gateRoutes(marker.Families, podPrefixes) }
	for _, check := range []func() error{p.gatePins, gateTables, routes} {
		if err := check(); err != nil {
			return fmt.Errorf("%w: %w", ErrClosed, err)
		}
	}
	return nil
}

func has(f cluster.Families, a netip.Addr) bool { return a.Is4() && f.V4 || a.Is6() && f.V6 }

func (p Paths) gatePins() error {
	for _, name := range []string{abi.PinGuardIngress, abi.PinGuardEgress} {
		if _, err := os.Stat(p.pin(name)); err != nil {
			if errors.Is(err, fs.ErrNotExist) {
				return fmt.Errorf("guard: pinned BPF object %s does not exist; is veild running? "+
					"it pins it again when it starts", p.pin(name))
			}
			return fmt.Errorf("guard: %w", err)
		}
	}
	return nil
}

// gateTables checks that the guard's table and the pods' table exist, and that the pods' table has
// its chain and its sets.
func gateTables() error {
	pods := &nft.Table{Name: abi.NFTPodTable, Chains: []nft.Chain{nft.Target(abi.NFTPodChain)}}
	for _, name := range podSets {
		pods.Sets = append(pods.Sets, nft.Set{Set: nftables.Set{Name: name}})
	}
	if err := nft.Find(&nft.Table{Name: abi.NFTGuardTable}, pods); err != nil {
		return fmt.Errorf("guard: %w; is veild running? it restores it", err)
	}
	return nil
}

// gateRoutes checks the rules of the families that veild applied, and the closed ranges around the
// pods' prefixes.
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
		pod = pod || r.Priority == abi.RulePrefPod && r.Table == abi.TablePod &&
			r.Mark == abi.PodMark
		tunnel = tunnel || r.Priority == abi.RulePrefTunnel && r.Mark == abi.TunnelMark
	}
	switch {
	case !pod:
		return fmt.Errorf("%s rule %d (packets from pods to table %d) does not exist; is veild "+
			"running? it restores it", name, abi.RulePrefPod, abi.TablePod)
	case !tunnel:
		return fmt.Errorf("%s rule %d (packets of tunnels) does not exist; is veild running? it "+
			"restores it", name, abi.RulePrefTunnel)
	}
	return nil
}

// gateRange checks that TablePod has an unreachable route that covers prefix.
func gateRange(h *nl.Handle, prefix netip.Prefix) error {
	want := &nl.Route{Table: abi.TablePod, Protocol: abi.RouteProtoNode,
		Type: unix.RTN_UNREACHABLE}
	routes, err := listRoutes(h, family(prefix.Addr()), want,
		nl.FilterTable|nl.FilterProtocol|nl.FilterType)
	if err != nil {
		return fmt.Errorf("list routes of table %d: %w", abi.TablePod, err)
	}
	for _, r := range routes {
		if r.Type != unix.RTN_UNREACHABLE || r.Protocol != abi.RouteProtoNode || r.Dst == nil {
			continue
		}
		ones, _ := r.Dst.Mask.Size()
		if ones <= prefix.Bits() && r.Dst.Contains(prefix.Addr().AsSlice()) {
			return nil
		}
	}
	return fmt.Errorf("table %d has no unreachable route for pod prefix %s; is veild running, and "+
		"is %s in its clusterRanges?", abi.TablePod, prefix, prefix)
}
