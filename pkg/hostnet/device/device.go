package device

import (
	"fmt"
	"net"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/nl"
	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/sysctl"
)

// Settings are the settings of a tunnel device.
type Settings struct {
	Name string
	// MTU is in bytes. 0 in wanted Settings means that the MTU is not changed.
	MTU int
	// Group is the link group, TunnelGroup.
	Group uint32
	// QueueLen is the length of the transmit queue, packets.
	QueueLen int
	// RPFilter is net.ipv4.conf.NAME.rp_filter; 2 means loose.
	RPFilter int
	// Addr4 reports whether the device has abi.TunnelAddress4. Without an address, RPFilter 2 has
	// no effect.
	Addr4 bool
	Up    bool
}

func (d Settings) String() string {
	up := "down"
	if d.Up {
		up = "up"
	}
	addr := "no address"
	if d.Addr4 {
		addr = abi.TunnelAddress4
	}
	return fmt.Sprintf("%s group %#x mtu %d qlen %d rp_filter %d %s %s", d.Name, d.Group, d.MTU,
		d.QueueLen, d.RPFilter, addr, up)
}

// rpFilterLoose is the loose mode of rp_filter (RFC 3704), which accepts a source if any link has a
// route to it. It is needed because packets from a peer's node address arrive on the tunnel device.
// The kernel applies it only if the device has an address (no_addr in __fib_validate_source,
// net/ipv4/fib_frontend.c).
const rpFilterLoose = 2

// Want returns the settings that a tunnel device must have. An MTU of 0 means that it is not
// changed.
func Want(name string, mtu int) Settings {
	return Settings{Name: name, MTU: mtu, Group: abi.TunnelGroup, QueueLen: abi.TunnelQueueLen,
		RPFilter: rpFilterLoose, Addr4: true, Up: true}
}

// Read reads the settings of a link.
func Read(h *nl.Handle, l nl.Link) (Settings, error) {
	a := l.Attrs()
	d := Settings{Name: a.Name, MTU: a.MTU, Group: a.Group, QueueLen: a.TxQLen,
		Up: a.Flags&net.FlagUp != 0}
	var err error
	if d.RPFilter, err = sysctl.ReadNumber(sysctl.RPFilter(a.Name)); err != nil {
		return d, err
	}
	addrs, err := h.AddrList(l, nl.FamilyV4)
	if err != nil {
		return d, fmt.Errorf("list addresses of %s: %w", a.Name, err)
	}
	d.Addr4 = slices.ContainsFunc(addrs, func(a nl.Addr) bool {
		return a.IPNet.String() == address().String()
	})
	return d, nil
}

// Apply changes the settings of a device from have to want.
func Apply(h *nl.Handle, have, want Settings) error {
	link, err := h.LinkByName(want.Name)
	if err != nil {
		return err
	}

	if have.Group != want.Group {
		if err := h.LinkSetGroup(link, int(want.Group)); err != nil {
			return fmt.Errorf("set group: %w", err)
		}
	}

	if have.RPFilter != want.RPFilter {
		if err := sysctl.Write(sysctl.RPFilter(want.Name),
			fmt.Sprint(want.RPFilter)); err != nil {
			return err
		}
	}

	if want.Addr4 && !have.Addr4 {
		if err := h.AddrReplace(link, &nl.Addr{IPNet: address(),
			Scope: unix.RT_SCOPE_HOST}); err != nil {
			return fmt.Errorf("add address %s: %w", address(), err)
		}
	}

	if have.QueueLen != want.QueueLen {
		if err := h.LinkSetTxQLen(link, want.QueueLen); err != nil {
			return fmt.Errorf("set queue length: %w", err)
		}
	}

	if have.MTU != want.MTU {
		if err := h.LinkSetMTU(link, want.MTU); err != nil {
			return fmt.Errorf("set mtu: %w", err)
		}
	}

	if !have.Up {
		if err := h.LinkSetUp(link); err != nil {
			return fmt.Errorf("set up: %w", err)
		}
	}

	return nil
}

// address returns abi.TunnelAddress4 as the address of a link.
func address() *net.IPNet { return nl.IPNet(netip.MustParsePrefix(abi.TunnelAddress4 + "/32")) }
