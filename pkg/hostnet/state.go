package hostnet

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/hostnet/device"
	"github.com/kubeveil/kubeveil/pkg/hostnet/flowtable"
	"github.com/kubeveil/kubeveil/pkg/hostnet/rtnetlink"
)

// State is the part of the kernel's state that belongs to Kubeveil, in canonical order, so equal
// States print the same. The zero value means that the kernel has nothing of Kubeveil.
type State struct {
	Rules   []Rule
	Routes  []rtnetlink.Route
	Devices []Device
	// Forward4 and Forward6 report whether packets of the family are forwarded.
	Forward4, Forward6 bool
	// Reflect4 and Reflect6 are net.ipv4.fwmark_reflect and net.ipv6.fwmark_reflect: 0 means off,
	// reflectOurs means that Kubeveil turned it on, any other value belongs to another owner.
	Reflect4, Reflect6 int
	// RALinks are links that would lose a default route, learned from router advertisements, if
	// IPv6 forwarding were enabled. Read sets it, Plan does not.
	RALinks []string
	// NAT is the content of the nftables table NFTNatTable as text. It is empty if there is no such
	// table.
	NAT string
	// Outer is the content of NFTOuterTable, in the same form.
	Outer string
	// Flows is the content of NFTFlowTableTCP and NFTFlowTableUDP, in the same form.
	Flows string
	// Joins are the links that belong to the flow tables. Joined are the links that are in them.
	// Read sets both, Plan does not.
	Joins, Joined []flowtable.Join
	// OuterPort is the port in the rules of Outer. Plan sets it, Read does not.
	OuterPort int
}

// Rule is a policy routing rule for packets with a mark.
type Rule struct {
	V6   bool
	Pref int
	// Mark is both the value and the mask of the match.
	Mark uint32
	// Table is the routing table to look up. 0 means that the rule refuses the packet as
	// unreachable.
	Table int
	// NotGroup makes the rule ignore a route whose output link is in this group. 0 means no group.
	NotGroup uint32
}

// Device holds the settings of a tunnel device. Diff ignores a wanted Device that does not exist.
// Routes over it cannot be added until pkg/tunnel makes it.
type Device = device.Settings

func (r Rule) String() string {
	family := "inet"
	if r.V6 {
		family = "inet6"
	}
	s := fmt.Sprintf("%d: %s fwmark %#x/%#x", r.Pref, family, r.Mark, r.Mark)
	switch r.Table {
	case 0:
		s += " unreachable"
	case unix.RT_TABLE_MAIN:
		s += " lookup main"
	default:
		s += fmt.Sprintf(" lookup %d", r.Table)
	}
	if r.NotGroup != 0 {
		s += fmt.Sprintf(" suppress_ifgroup %#x", r.NotGroup)
	}
	return s
}

// String returns the state as text, for people and for golden tests: one line per rule, route and
// device.
func (s State) String() string {
	var b strings.Builder
	for _, r := range s.Rules {
		fmt.Fprintf(&b, "rule %s\n", r)
	}
	for _, r := range s.Routes {
		fmt.Fprintf(&b, "route %s\n", r)
	}
	for _, d := range s.Devices {
		fmt.Fprintf(&b, "device %s\n", d)
	}
	fmt.Fprintf(&b, "forwarding inet %t inet6 %t\n", s.Forward4, s.Forward6)
	if s.Reflect4 != 0 || s.Reflect6 != 0 {
		fmt.Fprintf(&b, "fwmark_reflect inet %d inet6 %d\n", s.Reflect4, s.Reflect6)
	}
	return b.String() + s.NAT + s.Outer + s.Flows
}

// sortSmall brings all fields except Routes into canonical order.
func (s *State) sortSmall() {
	slices.SortFunc(s.Rules, compareRules)
	slices.SortFunc(s.Devices, func(a, b Device) int { return cmp.Compare(a.Name, b.Name) })
	slices.Sort(s.RALinks)
	slices.SortFunc(s.Joins, flowtable.CompareJoins)
	slices.SortFunc(s.Joined, flowtable.CompareJoins)
}

func compareRules(a, b Rule) int {
	// "false" sorts before "true".
	return cmp.Or(cmp.Compare(fmt.Sprint(a.V6), fmt.Sprint(b.V6)), cmp.Compare(a.Pref, b.Pref),
		cmp.Compare(a.Mark, b.Mark),
		cmp.Compare(a.Table, b.Table), cmp.Compare(a.NotGroup, b.NotGroup))
}

// ours reports whether Plan makes rules of this preference and mark.
func ours(pref int, mark uint32) bool {
	switch pref {
	case abi.RulePrefTunnel, abi.RulePrefTunnelDeny:
		return mark == abi.TunnelMark
	case abi.RulePrefPod:
		return mark == abi.PodMark
	}
	return false
}
