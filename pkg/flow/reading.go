package flow

import (
	"encoding/binary"
	"hash/maphash"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/nl"
	"github.com/kubeveil/kubeveil/pkg/service/bpfmaps"
	"github.com/kubeveil/kubeveil/pkg/telemetry"
)

// seenKept bounds reading.seen. Beyond it, a connection may be shown twice.
const seenKept = 1 << 19

// reading is the work of one request of the page.
type reading struct {
	*kept
	*world
	query query
	drops drops
	seed  maphash.Seed
	// seen holds hashes of the connections that were added, if twice is set. twice reports whether
	// a connection may be in conntrack, in the services' flow table and in that of the fast path.
	seen  map[uint64]struct{}
	twice bool
	// sockets holds the sockets of host processes from before the reading of conntrack.
	sockets sockets
	// notes are sentences about what could not be read.
	notes []string
	// err is the first error. After it, add does nothing.
	err error
}

// begin discards everything that was read, because the reading of conntrack starts again.
func (p *reading) begin() {
	p.kept, p.seen = newKept(), map[uint64]struct{}{}
	p.drops.forget()
	p.sockets.forget()
}

// add judges a connection and keeps it if the query selects it.
func (p *reading) add(c connection) {
	if p.err != nil {
		return
	}
	key := keyOf(c)
	if p.twice && len(p.seen) < seenKept {
		p.seen[key.hash(p.seed)] = struct{}{}
	}
	if c.source == "conntrack" {
		p.sockets.track(c, key)
	}
	if p.carries(c) {
		p.Outer++
		return
	}
	client, server, legs, err := p.legs(c)
	if err != nil {
		p.err = err
		return
	}

	f := p.judge(legs, c.translated())
	if s := p.drops.take(c, key, client.pod); s != nil {
		// A sample never hides a connection in clear: its packets may have been dropped by a rule
		// or a route that is gone, or another sender may have used the same addresses and ports.
		if p.drops.isRecent(s.DroppedPacket) && !f.Class.Clear() {
			f = telemetry.Flow{Class: telemetry.FlowRefused, Reason: s.Reason, Link: f.Link}
		}
		f.Dropped, f.DroppedAt = s.Reason, s.Time
	}
	f.Protocol = telemetry.ProtocolName(c.Proto)
	f.Client, f.ClientPort, f.ClientPod = c.Client, c.ClientPort, client.pod
	f.Server, f.ServerPort, f.ServerPod = c.Server, c.Port, server.pod
	if c.translated() {
		f.Original, f.OriginalPort = c.Original.Addr(), c.Original.Port()
	}
	f.Replied, f.Source = c.Replied, c.source
	if p.query.matches(f) {
		p.kept.add(f)
	}
}

// addService adds a flow of the services' flow table, unless conntrack has the connection.
func (p *reading) addService(s bpfmaps.Flow) {
	c := connection{nl.Tracked{Connection: nl.Connection{Client: s.Client.Addr(),
		Server: s.Backend.Addr(), Proto: s.Protocol, Port: s.Backend.Port(),
		ClientPort: s.Client.Port()}, Original: s.Service, Replied: s.Established}, "services"}
	if !s.SNAT {
		c.Source = c.Client
	}
	if _, seen := p.seen[keyOf(c).hash(p.seed)]; !seen {
		p.add(c)
	}
}

// addOpened adds a TCP connection of the fast path, unless another table has it. It may be one that
// its server has not answered.
func (p *reading) addOpened(o nl.Opened) {
	c := connection{nl.Tracked{Connection: nl.Connection{Client: o.Client.Addr(),
		Server: o.Server.Addr(), Proto: unix.IPPROTO_TCP, Port: o.Server.Port(),
		ClientPort: o.Client.Port()}, Original: o.Server, Source: o.Client.Addr()}, "fast path"}
	if _, seen := p.seen[keyOf(c).hash(p.seed)]; !seen {
		p.add(c)
	}
}

// addDrops adds a refused connection for each recent sample of a drop that matched no connection.
func (p *reading) addDrops() {
	for _, d := range p.drops.left() {
		if !p.drops.isRecent(d) {
			continue
		}
		if d.SrcPod != "" && d.Out != "" && p.assigned[d.Src] {
			d.Src = p.podAddr(d.SrcPod, d.Src) // The packet was dropped after masquerading.
		}
		f := telemetry.Flow{Class: telemetry.FlowRefused, Reason: d.Reason, Peer: d.Peer, Link: d.Out,
			Dropped: d.Reason, DroppedAt: d.Time, Protocol: d.Protocol,
			Client: d.Src, ClientPort: d.SrcPort, ClientPod: d.SrcPod,
			Server: d.Dst, ServerPort: d.DstPort, ServerPod: d.DstPod, Source: "drops"}
		if p.query.matches(f) {
			p.kept.add(f)
		}
	}
}

// key identifies the packets of a connection's client, as they are after NAT.
type key struct {
	src, dst         netip.Addr
	proto            string
	srcPort, dstPort uint16
}

func keyOf(c connection) key {
	return key{c.Client, c.Server, telemetry.ProtocolName(c.Proto), c.ClientPort, c.Port}
}

func (k key) hash(seed maphash.Seed) uint64 {
	var b [64]byte
	src, dst := k.src.As16(), k.dst.As16()
	n := copy(b[:], src[:])
	n += copy(b[n:], dst[:])
	binary.BigEndian.PutUint16(b[n:], k.srcPort)
	binary.BigEndian.PutUint16(b[n+2:], k.dstPort)
	n += 4
	n += copy(b[n:], k.proto)
	return maphash.Bytes(seed, b[:n])
}

// recentFor is how long a sample counts for a refused connection. It is as long as conntrack keeps
// most connections without a reply.
const recentFor = 2 * time.Minute

// drops holds samples of dropped packets, keyed by the packet. Only the last sample of a key is
// kept.
type drops struct {
	byKey map[key]*sample
	order []key
	// since is the time of the oldest samples that are recent.
	since time.Time
}

type sample struct {
	telemetry.DroppedPacket
	taken bool
}

// newDrops returns the samples, except those with harmless reasons or without addresses.
func newDrops(packets []telemetry.DroppedPacket, harmless map[string]bool, now time.Time) drops {
	d := drops{byKey: map[key]*sample{}, since: now.Add(-recentFor)}
	for _, p := range packets {
		if harmless[p.Reason] || !p.Src.IsValid() {
			continue
		}
		k := key{p.Src, p.Dst, p.Protocol, p.SrcPort, p.DstPort}
		if d.byKey[k] == nil {
			d.order = append(d.order, k)
		}
		d.byKey[k] = &sample{DroppedPacket: p}
	}
	return d
}

func (d drops) isRecent(p telemetry.DroppedPacket) bool { return !p.Time.Before(d.since) }

// take returns the last sample of a packet of the client, or nil, and marks it as taken. It returns
// nil for a connection that the server answered. pod is the client's pod, or "": a packet that
// another pod sent does not concern this connection. A packet that was dropped before NAT has the
// destination that the client connected to.
func (d drops) take(c connection, behind key, pod string) *sample {
	before := behind
	before.dst, before.dstPort = c.Original.Addr(), c.Original.Port()
	for _, k := range []key{behind, before} {
		if s := d.byKey[k]; s != nil && !c.Replied && s.SrcPod == pod {
			s.taken = true
			return s
		}
	}
	return nil
}

// forget marks all samples as not taken.
func (d drops) forget() {
	for _, s := range d.byKey {
		s.taken = false
	}
}

// left returns the samples that are not taken, in their original order.
func (d drops) left() (all []telemetry.DroppedPacket) {
	for _, k := range d.order {
		if s := d.byKey[k]; !s.taken {
			all = append(all, s.DroppedPacket)
		}
	}
	return all
}
