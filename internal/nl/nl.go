package nl

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Types of the library that callers handle.
type (
	Addr        = netlink.Addr
	Link        = netlink.Link
	LinkAttrs   = netlink.LinkAttrs
	Neigh       = netlink.Neigh
	NsFd        = netlink.NsFd
	Route       = netlink.Route
	Rule        = netlink.Rule
	Scope       = netlink.Scope
	Veth        = netlink.Veth
	Wireguard   = netlink.Wireguard
	GenericLink = netlink.GenericLink

	BpfFilter    = netlink.BpfFilter
	Filter       = netlink.Filter
	Qdisc        = netlink.Qdisc
	FilterAttrs  = netlink.FilterAttrs
	GenericQdisc = netlink.GenericQdisc
	QdiscAttrs   = netlink.QdiscAttrs
	Tuntap       = netlink.Tuntap

	RouteGetOptions = netlink.RouteGetOptions
)

// IPNet returns a prefix in the form that the library takes.
func IPNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

// Address families.
const (
	FamilyAll = netlink.FAMILY_ALL
	FamilyV4  = netlink.FAMILY_V4
	FamilyV6  = netlink.FAMILY_V6
)

// ErrNotFound matches errors for objects that the kernel does not have.
var ErrNotFound = fs.ErrNotExist

// ErrExists matches errors for objects that the kernel has already.
var ErrExists = fs.ErrExist

// Handle is a netlink socket in the network namespace of the thread that opened it. It is safe for
// concurrent use. Its dumps are retried when the kernel reports that they were interrupted.
type Handle struct {
	*netlink.Handle
}

// Open opens a Handle in the calling thread's network namespace.
func Open() (*Handle, error) {
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open netlink socket: %w", err)
	}
	return &Handle{h}, nil
}

// dumpTries bounds the tries of one dump. If every try is interrupted, the error is returned, never
// a partial result.
const dumpTries = 16

func dump[T any](f func() (T, error)) (T, error) {
	var v T
	var err error
	for range dumpTries {
		v, err = f()
		if !errors.Is(err, netlink.ErrDumpInterrupted) && !errors.Is(err, unix.EINTR) {
			return v, err
		}
	}
	return v, err
}

// LinkList lists all links.
func (h *Handle) LinkList() ([]Link, error) {
	return dump(h.Handle.LinkList)
}

// LinkByName returns the link of that name. The error matches ErrNotFound if there is none.
func (h *Handle) LinkByName(name string) (Link, error) {
	l, err := dump(func() (Link, error) { return h.Handle.LinkByName(name) })
	return l, Err(err)
}

// OpenLinks opens a Handle and lists all links.
func OpenLinks() (*Handle, []Link, error) {
	h, err := Open()
	if err != nil {
		return nil, nil, err
	}
	links, err := h.LinkList()
	if err != nil {
		h.Close()
		return nil, nil, fmt.Errorf("list links: %w", err)
	}
	return h, links, nil
}

// OnLink calls f with the link of that name in the calling thread's namespace, and with a Handle
// that is closed after the call. The error matches ErrNotFound if there is no such link.
func OnLink(name string, f func(h *Handle, l Link) error) error {
	h, err := Open()
	if err != nil {
		return err
	}
	defer h.Close()
	l, err := h.LinkByName(name)
	if err != nil {
		return fmt.Errorf("find link %s: %w", name, err)
	}
	return f(h, l)
}

// AddrList lists the addresses of link, or of all links if it is nil.
func (h *Handle) AddrList(link Link, family int) ([]Addr, error) {
	return dump(func() ([]Addr, error) { return h.Handle.AddrList(link, family) })
}

// RouteListFiltered lists the routes that match filter in the fields that mask selects.
func (h *Handle) RouteListFiltered(family int, filter *Route, mask uint64) ([]Route, error) {
	return dump(func() ([]Route, error) { return h.Handle.RouteListFiltered(family, filter, mask) })
}

// RuleList lists the policy rules of a family.
func (h *Handle) RuleList(family int) ([]Rule, error) {
	return dump(func() ([]Rule, error) { return h.Handle.RuleList(family) })
}

// QdiscList lists the qdiscs of link, or of all links if it is nil.
func (h *Handle) QdiscList(link Link) ([]Qdisc, error) {
	return dump(func() ([]Qdisc, error) { return h.Handle.QdiscList(link) })
}

// NeighList lists the neighbours on a link, or on all links for index 0.
func (h *Handle) NeighList(linkIndex, family int) ([]Neigh, error) {
	return dump(func() ([]Neigh, error) { return h.Handle.NeighList(linkIndex, family) })
}

// Filters of RouteListFiltered.
const (
	FilterTable    = netlink.RT_FILTER_TABLE
	FilterProtocol = netlink.RT_FILTER_PROTOCOL
	FilterOIF      = netlink.RT_FILTER_OIF
	FilterDst      = netlink.RT_FILTER_DST
	FilterType     = netlink.RT_FILTER_TYPE
)

// Parents and handles of classifiers at clsact.
const (
	ClsactParent  = netlink.HANDLE_CLSACT
	ClsactIngress = netlink.HANDLE_MIN_INGRESS
	ClsactEgress  = netlink.HANDLE_MIN_EGRESS
)

// OperUp is the operational state of a link that carries packets (RFC 2863).
const OperUp = netlink.OperUp

// NewRule returns a rule with every optional field unset.
func NewRule() *Rule { return netlink.NewRule() }

// NewLinkAttrs returns link attributes with every optional field unset.
func NewLinkAttrs() LinkAttrs { return netlink.NewLinkAttrs() }

// Err wraps an error so that it matches ErrNotFound if the kernel or the library did not find an
// object, and ErrExists for EEXIST. It returns any other error, and nil, unchanged.
func Err(err error) error {
	var missing netlink.LinkNotFoundError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &missing), errors.Is(err, unix.ENODEV), errors.Is(err, unix.ESRCH),
		errors.Is(err, unix.ENOENT), errors.Is(err, unix.EADDRNOTAVAIL):
		return fmt.Errorf("%w: %w", ErrNotFound, err)
	case errors.Is(err, unix.EEXIST):
		return fmt.Errorf("%w: %w", ErrExists, err)
	}
	return err
}
