package hostnet

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/kfeature"
	"github.com/kubeveil/kubeveil/internal/nft"
	"github.com/kubeveil/kubeveil/internal/nl"
	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/hostnet/device"
	"github.com/kubeveil/kubeveil/pkg/hostnet/flowtable"
	"github.com/kubeveil/kubeveil/pkg/hostnet/rtnetlink"
	"github.com/kubeveil/kubeveil/pkg/hostnet/tables"
	"github.com/kubeveil/kubeveil/pkg/hostnet/underlay"
	"github.com/kubeveil/kubeveil/pkg/hostnet/watch"
	"github.com/kubeveil/kubeveil/pkg/sysctl"
)

// Host is the kernel's routing in one network namespace. Use it from threads in the namespace in
// which it was opened. It is not safe for concurrent use.
type Host struct {
	nl *nl.Handle
	// ask lists and looks up routes.
	ask *rtnetlink.Socket
	// have is the state after the last Sync. Nil means that the next Sync must read the kernel.
	have *State
	// wanted is the argument of the last SyncWant if that succeeded, otherwise nil.
	wanted *Want
	// destinations counts the peers of wanted by destination. Nil means that it is not known.
	destinations destinations
	// podLinksChanged reports whether the flow tables in have may be outdated.
	podLinksChanged bool
	flows           *flowtable.Flows
	// links caches link indexes by name during one Apply.
	links map[string]int
	// inject is called before each Op. Only tests set it, to inject failures.
	inject func(Op) error
}

// Open opens the network namespace of the calling thread.
func Open() (*Host, error) {
	h, err := nl.Open()
	if err != nil {
		return nil, err
	}
	ask, err := rtnetlink.Open()
	if err != nil {
		h.Close()
		return nil, err
	}
	return &Host{nl: h, ask: ask, flows: flowtable.New(kfeature.FlowTableProblem())}, nil
}

// Close closes the sockets. It does not change the kernel's state.
func (h *Host) Close() {
	h.nl.Close()
	h.ask.Close()
}

// Read returns the part of the kernel's state that belongs to Kubeveil, in canonical order.
func (h *Host) Read() (State, error) {
	var s State
	links, err := h.nl.LinkList()
	if err != nil {
		return s, fmt.Errorf("list links: %w", err)
	}

	names := make(map[int]string, len(links))
	for _, l := range links {
		a := l.Attrs()
		names[a.Index] = a.Name
		if !watch.IsTunnel(a) {
			continue
		}
		d, err := device.Read(h.nl, l)
		if err != nil {
			return s, err
		}
		s.Devices = append(s.Devices, d)
	}

	for _, family := range []int{nl.FamilyV4, nl.FamilyV6} {
		for _, table := range []int{abi.TablePod, unix.RT_TABLE_MAIN} {
			routes, err := h.ask.Routes(h.nl, family, table, names)
			if err != nil {
				return s, err
			}
			s.Routes = append(s.Routes, routes...)
		}
		if err := h.readRules(&s, family); err != nil {
			return s, err
		}
	}

	if err := h.readForwarding(&s, names); err != nil {
		return s, err
	}

	for path, value := range map[string]*int{reflect4Path: &s.Reflect4, reflect6Path: &s.Reflect6} {
		// A kernel without IPv6.
		if *value, err = sysctl.ReadNumber(path); err != nil && !errors.Is(err, os.ErrNotExist) {
			return s, err
		}
	}

	read, err := nft.ReadAll(slices.Concat([]*nft.Table{tables.NAT(), tables.Outer(0)},
		flowtable.Tables(nil))...)
	if err != nil {
		return s, err
	}
	s.NAT, s.Outer = read[0].String(), read[1].String()
	s.Flows, s.Joins, s.Joined = h.flows.Read(links, read[2:])

	slices.SortFunc(s.Routes, rtnetlink.CompareRoutes)
	s.sortSmall()
	return s, nil
}

// Underlay determines how node traffic leaves this node; see underlay.Find.
func (h *Host) Underlay(nodes, self []netip.Addr) (underlay.Link, error) {
	return underlay.Find(h.nl, h.ask, nodes, self)
}

func (h *Host) readRules(s *State, family int) error {
	rules, err := h.nl.RuleList(family)
	if errors.Is(err, unix.EAFNOSUPPORT) || errors.Is(err, unix.EOPNOTSUPP) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("list rules: %w", err)
	}
	for _, r := range rules {
		if !ours(r.Priority, r.Mark) || r.Mask == nil || *r.Mask != r.Mark || r.Src != nil ||
			r.Dst != nil || r.IifName != "" || r.OifName != "" || r.Invert {
			continue
		}
		rule := Rule{V6: family == nl.FamilyV6, Pref: r.Priority, Mark: r.Mark, Table: r.Table}
		if r.SuppressIfgroup > 0 {
			rule.NotGroup = uint32(r.SuppressIfgroup)
		}
		s.Rules = append(s.Rules, rule)
	}
	return nil
}

func (h *Host) readForwarding(s *State, names map[int]string) error {
	v, err := sysctl.Read(forward4Path)
	if err != nil {
		return err
	}

	s.Forward4 = v != "0"
	v, err = sysctl.Read(forward6Path)
	if errors.Is(err, os.ErrNotExist) {
		return nil // A kernel without IPv6.
	}
	if err != nil {
		return err
	}
	if s.Forward6 = v != "0"; s.Forward6 {
		return nil
	}
	routes, err := h.nl.RouteListFiltered(nl.FamilyV6, &nl.Route{Protocol: unix.RTPROT_RA},
		nl.FilterProtocol)
	if err != nil {
		return fmt.Errorf("list routes learned from router advertisements: %w", err)
	}

	seen := map[string]bool{}
	for _, r := range routes {
		name, isDefault := names[r.LinkIndex], r.Dst == nil || r.Dst.String() == "::/0"
		if !isDefault || name == "" || seen[name] {
			continue
		}
		seen[name] = true
		if v, err := sysctl.Read(acceptRAPath(name)); err == nil && v == "1" {
			s.RALinks = append(s.RALinks, name)
		}
	}

	return nil
}

// Settings, as paths below /proc/sys/net. They belong to the calling thread's network namespace.
const (
	forward4Path = "ipv4/ip_forward"
	forward6Path = "ipv6/conf/all/forwarding"
	reflect4Path = "ipv4/fwmark_reflect"
	reflect6Path = "ipv6/fwmark_reflect"
)

// reflectOurs is the value to which Kubeveil sets fwmark_reflect. The kernel treats all values
// except 0 equally (IP4_REPLY_MARK, include/net/ip.h); 255 is the largest. So the value identifies
// its owner. A value of another owner, such as an operator's 1, must not be reset.
const reflectOurs = abi.RouteProtoNode

func acceptRAPath(link string) string { return "ipv6/conf/" + link + "/accept_ra" }
