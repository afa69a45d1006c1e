package engine

import (
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/secret"
	"github.com/kubeveil/kubeveil/pkg/engine/noise"
	"github.com/kubeveil/kubeveil/pkg/engine/uapi"
)

// maxPeers bounds the peers of a device, as wireguard-go does.
const maxPeers = 1 << 16

// change is a section of a Set and the peer that it changes. The peer is nil if the section changes
// none.
type change struct {
	set  *uapi.Peer
	peer *peer
	made bool // this section adds the peer
}

// plan holds the changes that a Set makes to peers.
type plan struct {
	changes []change
	// made holds the peers that the Set adds and does not remove again. An added peer that is
	// removed again has no secrets.
	made []*peer
}

// free frees the peers of a plan that is not applied.
func (p *plan) free(a *secret.Arena) {
	for _, p := range p.made {
		secret.Free(a, p.secrets)
	}
}

// plan finds or makes the peer of each section of a Set. A section sees the result of the sections
// before it, so one Set has the same result as several Sets with its sections. If a key is removed
// and then set again, later sections change a new peer.
func (d *Device) plan(set *uapi.Set) (plan, error) {
	var out plan
	own, err := d.nextKey(set)
	if err != nil {
		return out, err
	}

	n := len(d.mu.peers)
	if own != (noise.PublicKey{}) && d.mu.peers[own] != nil {
		n-- // setPrivate removes the peer with the device's own key.
	}
	if set.ReplacePeers {
		n = 0
	}
	// latest holds the peers that earlier sections added or removed, by key. Nil means that the
	// peer is removed.
	latest := map[noise.PublicKey]*peer{}
	for i := range set.Peers {
		c := change{set: &set.Peers[i]}
		key := noise.PublicKey(c.set.Public)
		if key == own && own != (noise.PublicKey{}) {
			continue // wg(8) users give all nodes one list of peers, so skip the device's own key.
		}
		p, known := latest[key]
		if !known && !set.ReplacePeers {
			p = d.mu.peers[key]
		}

		switch {
		case p != nil && c.set.Remove:
			latest[key] = nil
			n--
		case p != nil || c.set.Remove || c.set.UpdateOnly:
		default:
			if n++; n > maxPeers {
				return out, &uapi.Error{Code: -int64(unix.EINVAL),
					Err: fmt.Errorf("add peer: the limit is %d", maxPeers)}
			}
			p = newPeer(key)
			latest[key], c.made = p, true
		}
		c.peer = p
		out.changes = append(out.changes, c)
	}

	return out, d.giveSecrets(&out, latest)
}

// nextKey returns the device's public key after the Set.
func (d *Device) nextKey(set *uapi.Set) (noise.PublicKey, error) {
	if set.PrivateKey == nil {
		return d.mu.id.Public, nil
	}
	other, err := noise.NewIdentity(d.arena)
	if err != nil {
		return noise.PublicKey{}, err
	}
	defer other.Close()
	other.SetPrivate(set.PrivateKey)
	return other.Public, nil
}

// giveSecrets allocates the secrets of the added peers that the Set does not remove again. After an
// error it has freed them.
func (d *Device) giveSecrets(out *plan, latest map[noise.PublicKey]*peer) error {
	for _, c := range out.changes {
		if !c.made || latest[c.peer.public] != c.peer {
			continue
		}
		s, err := secret.Alloc[noise.Secrets](d.arena)
		if err != nil {
			out.free(d.arena)
			out.made = nil
			return err
		}
		c.peer.secrets, c.peer.stamper = s, noise.NewStamper(c.peer.public)
		out.made = append(out.made, c.peer)
	}
	return nil
}

// newPeer returns a peer without secrets.
func newPeer(key noise.PublicKey) *peer {
	return &peer{public: key, jitter: randomJitter(), allowed: map[netip.Prefix]struct{}{}}
}

// newPeer returns a peer with secrets.
func (d *Device) newPeer(key noise.PublicKey) (*peer, error) {
	p := newPeer(key)
	var err error
	p.secrets, err = secret.Alloc[noise.Secrets](d.arena)
	p.stamper = noise.NewStamper(key)
	return p, err
}
