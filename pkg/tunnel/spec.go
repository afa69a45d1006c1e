package tunnel

import (
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/cluster"
	"github.com/kubeveil/kubeveil/pkg/wgkey"
)

// Spec is the desired state of all tunnel devices of this node.
type Spec struct {
	Devices []Device
	// Prune makes Sync remove our devices and their peers that are not in the Spec. It is false
	// until every source has synced.
	Prune bool
	// Underlay holds the families of the node's underlay. A peer whose endpoint is of another
	// family gets its claimed endpoint. The zero value allows both.
	Underlay cluster.Families
}

// Device is a WireGuard device. Several may reach the same nodes.
type Device struct {
	// Name is abi.TunnelDevicePrefix and a number.
	Name string
	// Epoch is the epoch of PrivateKey; Lane numbers devices of one epoch from 0.
	Epoch uint32
	Lane  int
	// ListenPort is the UDP port on the underlay.
	ListenPort int
	// Mark is set on the outer packets (SO_MARK).
	Mark       uint32
	PrivateKey wgkey.Private
	// MTU is the device's MTU at creation, bytes; afterwards pkg/hostnet sets it.
	MTU   int
	Peers []Peer
}

// Peer is another node, as one device sees it.
type Peer struct {
	// Name is the name of the node, for messages.
	Name      string
	PublicKey wgkey.Public
	// Endpoint is the claimed endpoint. The zero value means that the peer must initiate.
	Endpoint netip.AddrPort
	// Sources are the addresses that the peer's endpoint may have. Nil allows any.
	Sources []netip.Addr
	// AllowedIPs are the inner addresses that are routed to the peer and accepted from it.
	AllowedIPs []netip.Prefix
	// Keepalive is the interval of keepalives that keep firewalls open, full seconds; 0 sends none.
	Keepalive time.Duration
}

// Check returns an error about the parts of s that cannot work.
func (s Spec) Check() error {
	names := map[string]bool{}
	for _, d := range s.Devices {
		if !IsDeviceName(d.Name) {
			return fmt.Errorf("tunnel device %q: want %q and a number", d.Name,
				abi.TunnelDevicePrefix)
		}
		if names[d.Name] {
			return fmt.Errorf("tunnel device %s occurs twice", d.Name)
		}
		names[d.Name] = true
		if err := d.check(); err != nil {
			return fmt.Errorf("tunnel device %s: %w", d.Name, err)
		}
	}
	return nil
}

func (d Device) check() error {
	nodeByKey := map[wgkey.Public]string{}
	nodeByIP := map[netip.Prefix]string{}
	own := d.PrivateKey.Public()
	for _, p := range d.Peers {
		if p.PublicKey == own {
			return fmt.Errorf("peer %s has this node's own key", p.Name)
		}
		if other, ok := nodeByKey[p.PublicKey]; ok {
			return fmt.Errorf("peers %s and %s have the same key %s", other, p.Name, p.PublicKey)
		}
		nodeByKey[p.PublicKey] = p.Name
		for _, ip := range p.AllowedIPs {
			if !ip.IsValid() || ip != ip.Masked() {
				return fmt.Errorf("peer %s: allowed ip %s is not a masked prefix", p.Name, ip)
			}
			if other, ok := nodeByIP[ip]; ok {
				return fmt.Errorf("peers %s and %s have the same allowed ip %s", other, p.Name, ip)
			}
			nodeByIP[ip] = p.Name
		}
	}
	return nil
}

// IsDeviceName reports whether name has the form of a tunnel device's name.
func IsDeviceName(name string) bool {
	digits, ok := strings.CutPrefix(name, abi.TunnelDevicePrefix)
	return ok && digits != "" && len(name) <= 15 && strings.Trim(digits, "0123456789") == ""
}
