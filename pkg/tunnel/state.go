package tunnel

import (
	"net/netip"
	"slices"
	"time"

	"github.com/kubeveil/kubeveil/pkg/wgkey"
)

// Kind is the implementation of a device.
type Kind string

// Kinds of devices.
const (
	Kernel    Kind = "kernel"
	Userspace Kind = "userspace"
	// Foreign is a link with one of our names that is not a WireGuard device. It is never changed.
	Foreign Kind = "foreign"
)

// LiveState is the state of the devices as read.
type LiveState struct {
	Devices []DeviceState `json:"devices"`
}

// DeviceState is a device as read.
type DeviceState struct {
	Name string `json:"name"`
	Kind Kind   `json:"kind"`
	// Served reports whether the device could be read. If not, the fields after Up are empty. A TUN
	// device is not served while veil-wg does not run.
	Served bool `json:"served"`
	// Ours reports whether the link is in abi.TunnelGroup.
	Ours bool `json:"-"`
	MTU  int  `json:"mtu"`
	Up   bool `json:"up"`
	// PublicKey is zero while the device has no private key.
	PublicKey  wgkey.Public `json:"publicKey,omitzero"`
	ListenPort int          `json:"listenPort"`
	Mark       uint32       `json:"-"`
	Peers      []PeerState  `json:"peers"`
	// Drops counts the packets that veil-wg dropped or refused, by reason. Nil means that veil-wg
	// does not report them.
	Drops map[string]uint64 `json:"drops,omitempty"`
	// Offloads holds the offloads that veil-wg knows, and whether it uses them. Nil means that
	// veil-wg does not report them.
	Offloads map[string]bool `json:"offloads,omitempty"`
}

// PeerState is a peer as read.
type PeerState struct {
	// Name is the name of the node; "" for a peer that is not in the last Spec.
	Name      string       `json:"name"`
	PublicKey wgkey.Public `json:"publicKey"`
	// Endpoint is the address from which the peer was last heard, or the one that was set after
	// that.
	Endpoint netip.AddrPort `json:"endpoint"`
	// Claimed is the endpoint of the peer in the last Spec. Zero means that it had none.
	Claimed    netip.AddrPort `json:"claimed"`
	AllowedIPs []netip.Prefix `json:"allowedIPs"`
	Keepalive  time.Duration  `json:"-"`
	// HasPreshared reports whether the peer has a preshared key, which we never set.
	HasPreshared bool `json:"-"`
	// Singly reports whether datagrams are sent to the peer one by one.
	Singly bool `json:"singly,omitempty"`
	// LastHandshake is zero when there was none.
	LastHandshake time.Time `json:"lastHandshake"`
	// Received and Sent count the outer bytes since the peer was added to the device.
	Received int64 `json:"received"`
	Sent     int64 `json:"sent"`
	// The Manager derives Contact, Heard and Unanswered from the counters. Contact describes
	// whether the peer answers. Heard is the time of the last authentic message; zero means never.
	// Unanswered is the time since which packets await an answer; zero means that none do.
	Contact    Contact   `json:"contact"`
	Heard      time.Time `json:"heard"`
	Unanswered time.Time `json:"unanswered"`
}

// sameAs reports whether st has the configuration of have, in the same order, and each peer its
// claimed endpoint. If have matches a Spec, st then matches it too. It may return false if in
// doubt.
func (st LiveState) sameAs(have LiveState) bool {
	return slices.EqualFunc(st.Devices, have.Devices, func(d, e DeviceState) bool {
		if d.Name != e.Name || d.Kind != e.Kind || d.Served != e.Served || d.Ours != e.Ours ||
			d.PublicKey != e.PublicKey || d.ListenPort != e.ListenPort || d.Mark != e.Mark ||
			len(d.Peers) != len(e.Peers) {
			return false
		}
		for i := range d.Peers {
			p, q := &d.Peers[i], &e.Peers[i]
			if p.PublicKey != q.PublicKey || p.Keepalive != q.Keepalive || p.HasPreshared ||
				p.Claimed.IsValid() && p.Endpoint != p.Claimed ||
				!slices.Equal(p.AllowedIPs, q.AllowedIPs) {
				return false
			}
		}
		return true
	})
}

// after returns the state of the devices once the changes c, of want, were applied to st. It does
// not modify st.
func (st LiveState) after(want Spec, c Changes) LiveState {
	wanted := map[string]Device{}
	for _, d := range want.Devices {
		wanted[d.Name] = d
	}
	endpoints := map[peerID]netip.AddrPort{}
	for _, dc := range c.Configure {
		for _, p := range dc.Peers {
			if p.Endpoint != nil {
				endpoints[peerID{dc.Name, p.PublicKey}] = *p.Endpoint
			}
		}
	}
	var out LiveState
	for _, d := range st.Devices {
		if slices.Contains(c.Remove, d.Name) {
			continue
		}
		if w, ok := wanted[d.Name]; ok {
			d.PublicKey, d.ListenPort, d.Mark = w.PrivateKey.Public(), w.ListenPort, w.Mark
			d.Peers = peersAfter(d, w, want.Prune, endpoints)
		}
		out.Devices = append(out.Devices, d)
	}
	return out
}

// peersAfter returns the peers of st once st matches want. endpoints holds the endpoints that were
// set. If prune is false, peers that are not in want stay.
func peersAfter(st DeviceState, want Device, prune bool,
	endpoints map[peerID]netip.AddrPort) []PeerState {
	left := make(map[wgkey.Public]PeerState, len(st.Peers))
	for _, p := range st.Peers {
		left[p.PublicKey] = p
	}

	out := make([]PeerState, 0, len(want.Peers))
	taken := map[netip.Prefix]bool{}
	for _, w := range want.Peers {
		p := left[w.PublicKey]
		delete(left, w.PublicKey)
		p.Name, p.PublicKey, p.Claimed = w.Name, w.PublicKey, w.Endpoint
		p.AllowedIPs, p.Keepalive, p.HasPreshared = w.AllowedIPs, w.Keepalive, false
		if e, ok := endpoints[peerID{st.Name, w.PublicKey}]; ok {
			p.Endpoint = e
		}
		out = append(out, p)
		if !prune {
			for _, ip := range w.AllowedIPs {
				taken[ip] = true
			}
		}
	}

	if prune {
		return out
	}

	for _, p := range st.Peers {
		if _, ok := left[p.PublicKey]; !ok {
			continue
		}
		// Assigning an allowed IP takes it from any other peer.
		p.AllowedIPs = slices.DeleteFunc(slices.Clone(p.AllowedIPs),
			func(ip netip.Prefix) bool { return taken[ip] })
		out = append(out, p)
	}

	return out
}

// SessionLifetime is how long a session may be used (WireGuard whitepaper,
// section 6.1, Reject-After-Time).
const SessionLifetime = 180 * time.Second
