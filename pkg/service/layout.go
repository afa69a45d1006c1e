package service

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"net/netip"
)

// The types of this file are keys and values of the BPF maps, byte for byte, in
// the byte order of the machine but for ports, which are in network order. IPv4
// addresses are mapped, ::ffff:a.b.c.d (RFC 4291 section 2.5.5.2).

// Scope is who looks a frontend up.
type Scope uint8

const (
	// Inside is host processes, pods, and packets from either.
	Inside Scope = iota
	// Outside is packets that came from outside the cluster, and those of other
	// nodes' pods to an address of this node.
	Outside
)

// FrontKey is the key of a frontend in the hash map service_fronts.
type FrontKey struct {
	Addr     [16]byte
	Port     [2]byte
	Protocol Protocol
	Scope    Scope
}

// Flags of a Front.
const (
	// FlagDrop is for no backends because none is on this node: packets from outside the cluster
	// are dropped, so that a balancer there goes to another node. Sockets and pods are refused all
	// the same.
	FlagDrop uint32 = 1 << iota
)

// Front is the value of a frontend. Count 0 refuses.
type Front struct {
	// Revision is of this value alone. A reader that has read a slot looks the
	// frontend up again: the same revision says that the slot was this frontend's.
	Revision uint64
	// Group is the key of affinity and members; it outlives changes of the backends.
	Group uint64
	// Sources is the set in service_sources that the source of a packet from outside the cluster
	// must be in; 0 is any.
	Sources uint64
	// First and Count are the extent in service_slots.
	First, Count uint32
	// Affinity is the timeout of an entry of affinity, seconds; 0 is none.
	Affinity uint32
	Flags    uint32
}

// FlagLocal is of a Slot whose backend is on this node.
const FlagLocal uint16 = 1

// Slot is a backend in the array map service_slots.
type Slot struct {
	Addr  [16]byte
	Port  [2]byte
	Flags uint16
	Pad   uint32 // zero
}

// MemberKey is the key of the hash map service_members. It has the backends of
// groups with affinity or of UDP, by which what remembers a backend learns that it went.
type MemberKey struct {
	Group uint64
	Addr  [16]byte
	Port  [2]byte
	Pad   [6]byte // zero
}

// Member is what a remembered backend is good for.
type Member uint32

const (
	// Draining keeps the flows it has.
	Draining Member = 1 + iota
	// Eligible may have new ones too.
	Eligible
)

// SourceKey is the key of the trie service_sources, which has no value but 1.
type SourceKey struct {
	// Bits counts those of Set too, and for IPv4 the 96 before it.
	Bits uint32
	// Set is in network order: a trie compares bytes.
	Set  [8]byte
	Addr [16]byte
}

func frontKey(a netip.AddrPort, p Protocol, s Scope) FrontKey {
	k := FrontKey{Addr: a.Addr().As16(), Protocol: p, Scope: s}
	binary.BigEndian.PutUint16(k.Port[:], a.Port())
	return k
}

// AddrPort returns the address that the key is for.
func (k FrontKey) AddrPort() netip.AddrPort { return addrPort(k.Addr, k.Port) }

func slotOf(a netip.AddrPort) Slot {
	s := Slot{Addr: a.Addr().As16()}
	binary.BigEndian.PutUint16(s.Port[:], a.Port())
	return s
}

// AddrPort returns the address of the backend.
func (s Slot) AddrPort() netip.AddrPort { return addrPort(s.Addr, s.Port) }

func addrPort(addr [16]byte, port [2]byte) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom16(addr).Unmap(), binary.BigEndian.Uint16(port[:]))
}

func compareSlot(a, b Slot) int {
	return cmp.Or(bytes.Compare(a.Addr[:], b.Addr[:]), bytes.Compare(a.Port[:], b.Port[:]))
}

func sourceKey(set uint64, p netip.Prefix) SourceKey {
	k := SourceKey{Bits: uint32(64 + p.Bits()), Addr: p.Masked().Addr().As16()}
	if p.Addr().Is4() {
		k.Bits += 96
	}
	binary.BigEndian.PutUint64(k.Set[:], set)
	return k
}

func (k SourceKey) set() uint64 { return binary.BigEndian.Uint64(k.Set[:]) }

// Limits are the sizes of the maps, in entries.
type Limits struct {
	Fronts  uint32
	Slots   uint32 // a power of two; backends of a service take the next one of their number
	Members uint32
	Sources uint32
}

// DefaultLimits are for 64k services and a million backends, changed while read.
var DefaultLimits = Limits{Fronts: 1 << 18, Slots: 1 << 22, Members: 1 << 21, Sources: 1 << 16}

// Room of entry 0, which nothing else takes.
const (
	// MaxAPIServers is how many backends of one family entry 0 has.
	MaxAPIServers = 1 << apiOrder
	// MaxAPIFronts is how many frontends it has.
	MaxAPIFronts = 16

	apiOrder  = 5
	apiBlocks = 4 // of each family: two may be read after a half-made change, one is written
	apiSlots  = 2 * apiBlocks << apiOrder
)
