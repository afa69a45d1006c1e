package nettest

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/nl"
)

// End describes one end of a veth pair. The addresses are usable at once, because they have no
// duplicate address detection. MTU 0 means the kernel's default.
type End struct {
	NS    *NS
	Name  string
	MTU   int
	Addrs []netip.Prefix
}

// Veth makes a veth pair with the ends a and b, which may be in the same namespace, and sets both
// up. The pair disappears with the namespaces.
func Veth(t testing.TB, a, b End) {
	t.Helper()
	h := a.NS.Handle()
	attrs := nl.NewLinkAttrs()
	attrs.Name, attrs.MTU = a.Name, a.MTU
	veth := &nl.Veth{LinkAttrs: attrs, PeerName: b.Name, PeerNamespace: nl.NsFd(b.NS.Fd())}
	if b.MTU != 0 {
		veth.PeerMTU = uint32(b.MTU)
	}
	if err := h.LinkAdd(veth); err != nil {
		t.Fatalf("add veth %s: %v", a.Name, err)
	}
	for _, end := range []End{a, b} {
		end.NS.Run(t, func() error { return end.up() })
	}
}

func (e End) up() error {
	if err := linkUp(e.Name); err != nil {
		return err
	}
	return addAddrs(e.Name, e.Addrs)
}

// TUN makes a persistent TUN device that no process has open, and sets it up. It stands in for a
// tunnel device. It disappears with the namespace.
func TUN(t testing.TB, ns *NS, name string) {
	t.Helper()
	NeedTUN(t)
	ns.Run(t, func() error {
		h, err := nl.Open()
		if err != nil {
			return err
		}
		defer h.Close()
		attrs := nl.NewLinkAttrs()
		attrs.Name = name
		tun := &nl.Tuntap{LinkAttrs: attrs, Mode: unix.IFF_TUN, Flags: unix.IFF_NO_PI}
		if err := h.LinkAdd(tun); err != nil {
			return fmt.Errorf("add tun %s: %w", name, err)
		}
		return linkUp(name)
	})
}

// OpenTUN opens a TUN or TAP device, and makes the device if it does not exist. kind is
// unix.IFF_TUN or unix.IFF_TAP. The caller must close the file.
func OpenTUN(t testing.TB, ns *NS, name string, kind uint16) (f *os.File) {
	t.Helper()
	ns.Run(t, func() error {
		fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
		if err != nil {
			return err
		}
		req, err := unix.NewIfreq(name)
		if err == nil {
			req.SetUint16(kind | unix.IFF_NO_PI)
			err = unix.IoctlIfreq(fd, unix.TUNSETIFF, req)
		}
		if err != nil {
			unix.Close(fd)
			return fmt.Errorf("open TUN %s: %w", name, err)
		}
		f = os.NewFile(uintptr(fd), name)
		return nil
	})
	return f
}

// AddAddr adds addresses to a link. They are usable at once.
func AddAddr(t testing.TB, ns *NS, link string, addrs ...netip.Prefix) {
	t.Helper()
	ns.Run(t, func() error { return addAddrs(link, addrs) })
}

func addAddrs(name string, addrs []netip.Prefix) error {
	return nl.OnLink(name, func(h *nl.Handle, link nl.Link) error {
		for _, p := range addrs {
			addr := &nl.Addr{IPNet: nl.IPNet(p)}
			if p.Addr().Is6() {
				addr.Flags = unix.IFA_F_NODAD
			}
			if err := h.AddrAdd(link, addr); err != nil {
				return fmt.Errorf("add address %s to %s: %w", p, name, err)
			}
			if p.Addr().Is6() && link.Attrs().Flags&net.FlagUp != 0 {
				if err := waitLocal(p.Addr()); err != nil {
					return fmt.Errorf("wait for address %s of %s: %w", p, name, err)
				}
			}
		}
		return nil
	})
}

// localPatience bounds waitLocal.
const localPatience = 10 * time.Second

// waitLocal waits until the calling thread's network namespace takes packets to an IPv6 address.
// The kernel adds the local route some time after the address (addrconf_dad_work in
// net/ipv6/addrconf.c), on a busy machine a second later. It returns nil after localPatience too,
// since rules of the test may lead elsewhere.
func waitLocal(addr netip.Addr) error {
	r, err := nl.OpenRouter()
	if err != nil {
		return err
	}
	defer r.Close()
	for deadline := time.Now().Add(localPatience); time.Now().Before(deadline); {
		if way, err := r.Way(nl.Packet{Dst: addr}); err == nil && way.Local {
			return nil
		}
		time.Sleep(time.Millisecond)
	}
	return nil
}

// AddRoute adds a route to dst through link. Its next hop is gw. If gw is the zero Addr, dst is on
// the link.
func AddRoute(t testing.TB, ns *NS, dst netip.Prefix, gw netip.Addr, link string) {
	t.Helper()
	ns.OnLink(link, func(h *nl.Handle, l nl.Link) error {
		r := &nl.Route{Dst: nl.IPNet(dst), LinkIndex: l.Attrs().Index}
		if gw.IsValid() {
			r.Gw = gw.AsSlice()
		} else if dst.Addr().Is4() {
			r.Scope = unix.RT_SCOPE_LINK
		}
		if err := h.RouteAdd(r); err != nil {
			return fmt.Errorf("add route to %s: %w", dst, err)
		}
		return nil
	})
}

// Sysctl writes a setting below /proc/sys/net of the namespace, such as
// "ipv4/ip_forward".
func Sysctl(t testing.TB, ns *NS, name, value string) {
	t.Helper()
	ns.Run(t, func() error {
		return os.WriteFile(filepath.Join("/proc/sys/net", name), []byte(value), 0o644)
	})
}

// Prefixes parses prefixes. It panics at a text that is not one.
func Prefixes(texts ...string) []netip.Prefix {
	out := make([]netip.Prefix, 0, len(texts))
	for _, t := range texts {
		out = append(out, netip.MustParsePrefix(t))
	}
	return out
}

// Addrs parses addresses. It panics at a text that is not one.
func Addrs(texts ...string) []netip.Addr {
	out := make([]netip.Addr, 0, len(texts))
	for _, t := range texts {
		out = append(out, netip.MustParseAddr(t))
	}
	return out
}

// AddrPorts parses addresses with ports.
func AddrPorts(text ...string) (all []netip.AddrPort) {
	for _, s := range text {
		all = append(all, netip.MustParseAddrPort(s))
	}
	return all
}
