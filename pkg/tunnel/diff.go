package tunnel

import (
	"net/netip"
	"slices"
	"time"

	"github.com/kubeveil/kubeveil/pkg/cluster"
	"github.com/kubeveil/kubeveil/pkg/wgkey"
)

// Changes are the changes that make a LiveState match a Spec. A device in Create is read after its
// creation and then configured.
type Changes struct {
	Create    []Device
	Configure []DeviceChange
	// Remove holds the names of devices to remove.
	Remove []string
}

// Empty reports whether there is nothing to do.
func (c Changes) Empty() bool {
	return len(c.Create) == 0 && len(c.Configure) == 0 && len(c.Remove) == 0
}

// DeviceChange is the content of one configuration of a device; nil fields are unchanged.
type DeviceChange struct {
	Name       string
	PrivateKey *wgkey.Private
	ListenPort *int
	Mark       *uint32
	// Peers are applied in this order.
	Peers []PeerChange
}

// PeerChange changes, adds or removes a peer.
type PeerChange struct {
	Name      string
	PublicKey wgkey.Public
	Remove    bool
	Endpoint  *netip.AddrPort
	// ReplaceAllowedIPs removes all allowed IPs before it adds AllowedIPs.
	ReplaceAllowedIPs bool
	AllowedIPs        []netip.Prefix
	Keepalive         *time.Duration
	// ClearPreshared removes a preshared key.
	ClearPreshared bool
}

// Diff returns exactly the changes that make have match want. It is pure. It computes the age of
// handshakes from now. With the zero Time it ignores handshakes: have was read earlier, so there
// may have been newer ones.
func Diff(want Spec, have LiveState, now time.Time) Changes {
	var c Changes
	haveByName := map[string]DeviceState{}
	for _, d := range have.Devices {
		haveByName[d.Name] = d
	}

	wanted := map[string]bool{}
	for _, d := range want.Devices {
		wanted[d.Name] = true
		st, ok := haveByName[d.Name]
		if !ok || !st.Served || !st.Ours {
			c.Create = append(c.Create, d)
			continue
		}
		if dc, differs := diffDevice(d, st, want, now); differs {
			c.Configure = append(c.Configure, dc)
		}
	}

	if !want.Prune {
		return c
	}

	for _, st := range have.Devices {
		if !wanted[st.Name] && st.Ours && st.Kind != Foreign {
			c.Remove = append(c.Remove, st.Name)
		}
	}

	return c
}

func diffDevice(d Device, st DeviceState, spec Spec, now time.Time) (DeviceChange, bool) {
	c := DeviceChange{Name: d.Name}
	differs := false
	if d.PrivateKey.Public() != st.PublicKey {
		c.PrivateKey, differs = &d.PrivateKey, true
	}
	if d.ListenPort != st.ListenPort {
		c.ListenPort, differs = &d.ListenPort, true
	}
	if d.Mark != st.Mark {
		c.Mark, differs = &d.Mark, true
	}
	c.Peers = diffPeers(d.Peers, st.Peers, spec, now)
	return c, differs || len(c.Peers) > 0
}

// diffPeers returns the changes of the peers, with removals last, so that an allowed IP moves to
// its new owner before the old owner is removed. The order of the other changes does not matter,
// because WireGuard takes an allowed IP from its old owner when it assigns the IP to another peer.
func diffPeers(want []Peer, have []PeerState, spec Spec, now time.Time) []PeerChange {
	haveByKey := make(map[wgkey.Public]PeerState, len(have))
	ownerByIP := map[netip.Prefix]wgkey.Public{}
	for _, p := range have {
		haveByKey[p.PublicKey] = p
		for _, ip := range p.AllowedIPs {
			ownerByIP[ip] = p.PublicKey
		}
	}

	// given holds the prefixes that move to another peer. They need not be removed first.
	given := map[netip.Prefix]bool{}
	wanted := make(map[wgkey.Public]bool, len(want))
	for _, p := range want {
		wanted[p.PublicKey] = true
		for _, ip := range p.AllowedIPs {
			if owner, ok := ownerByIP[ip]; !ok || owner != p.PublicKey {
				given[ip] = true
			}
		}
	}

	var out []PeerChange
	for _, p := range want {
		st, ok := haveByKey[p.PublicKey]
		if !ok {
			out = append(out, addPeer(p))
			continue
		}
		if pc, differs := diffPeer(p, st, given, spec.Underlay, now); differs {
			out = append(out, pc)
		}
	}

	for _, st := range have {
		if spec.Prune && !wanted[st.PublicKey] {
			out = append(out, PeerChange{Name: st.Name, PublicKey: st.PublicKey, Remove: true})
		}
	}

	return out
}

func addPeer(p Peer) PeerChange {
	c := PeerChange{Name: p.Name, PublicKey: p.PublicKey, ReplaceAllowedIPs: true,
		AllowedIPs: p.AllowedIPs}
	if p.Endpoint.IsValid() {
		c.Endpoint = &p.Endpoint
	}
	if p.Keepalive != 0 {
		c.Keepalive = &p.Keepalive
	}
	return c
}

func diffPeer(p Peer, st PeerState, given map[netip.Prefix]bool, underlay cluster.Families,
	now time.Time) (PeerChange, bool) {
	c := PeerChange{Name: p.Name, PublicKey: p.PublicKey}
	differs := false
	if resetEndpoint(p, st, underlay, now) {
		c.Endpoint, differs = &p.Endpoint, true
	}
	if p.Keepalive != st.Keepalive {
		c.Keepalive, differs = &p.Keepalive, true
	}
	if st.HasPreshared {
		c.ClearPreshared, differs = true, true
	}
	has := make(map[netip.Prefix]bool, len(st.AllowedIPs))
	for _, ip := range st.AllowedIPs {
		has[ip] = true
	}
	for _, ip := range p.AllowedIPs {
		if !has[ip] {
			c.AllowedIPs, differs = append(c.AllowedIPs, ip), true
		}
	}
	left := func(ip netip.Prefix) bool { return !slices.Contains(p.AllowedIPs, ip) && !given[ip] }
	if slices.ContainsFunc(st.AllowedIPs, left) {
		c.ReplaceAllowedIPs, c.AllowedIPs, differs = true, p.AllowedIPs, true
	}
	return c, differs
}

// resetEndpoint reports whether to set the endpoint of a peer to the claimed one. An endpoint that
// moved to another address of the peer stays while handshakes succeed. If this node's underlay has
// one family, an endpoint of the other family is reset: when two nodes change the family of their
// tunnel, late packets would otherwise move both back to the old one.
func resetEndpoint(p Peer, st PeerState, underlay cluster.Families, now time.Time) bool {
	switch {
	case !p.Endpoint.IsValid() || p.Endpoint == st.Endpoint:
		return false
	case !st.Endpoint.IsValid():
		return true
	case st.Claimed.IsValid() && st.Claimed != p.Endpoint:
		return true
	case p.Sources != nil && !slices.Contains(p.Sources, st.Endpoint.Addr()):
		return true
	case underlay.V4 != underlay.V6 && st.Endpoint.Addr().Unmap().Is4() != underlay.V4:
		return true
	}
	return !now.IsZero() && now.Sub(st.LastHandshake) >= SessionLifetime
}
