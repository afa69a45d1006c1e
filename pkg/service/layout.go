package service

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"math"
	"net/netip"

	"github.com/kubeveil/kubeveil/pkg/service/buddy"
)

// The types of this file are keys and values of the BPF maps, byte for byte. Ports are in network
// order, all else in the byte order of the machine. IPv4 addresses are mapped, ::ffff:a.b.c.d (RFC
// 4291 section 2.5.5.2). bpf/lib/service has the same types in C.

// Scope is the kind of clients of a frontend.
type Scope uint8

const (
	// Inside is for sockets and packets of host processes and pods.
	Inside Scope = iota
	// Outside is for packets of external clients, and for packets of other nodes' pods to an
	// address of this node.
	Outside
	// Host is for TCP sockets of the node's own network namespace, except veild's probes. It is
	// looked up before Inside. Without backends the address is not translated.
	Host
)

// FrontendKey is the key of a frontend in the hash map service_fronts.
type FrontendKey struct {
	Addr     [16]byte
	Port     [2]byte
	Protocol Protocol
	Scope    Scope
}

// Flags of a Frontend.
const (
	// FlagDrop marks a frontend without backends on this node. Packets of external clients are
	// dropped, so that a load balancer chooses another node. Sockets and pods are refused.
	FlagDrop uint32 = 1 << iota
)

// Frontend is the value of a frontend. A frontend with Count 0 refuses connections.
type Frontend struct {
	// Revision is unique to this value. A program that has read a backend looks up the frontend
	// again. An unchanged revision proves that the backend belonged to this frontend. Sockets and
	// flows of UDP remember it: while it is unchanged, their backend is still a member.
	Revision uint64
	// Group is the key of affinity. It stays the same when the backends change.
	Group uint64
	// Sources is the set of service_sources that must admit an external client; 0 admits any.
	Sources uint64
	// First is the first slot of a run in service_slots: Count backends for new flows, then Draining
	// backends that keep the flows that they have. Both parts are sorted. Slots are numbered over
	// all chunks.
	First, Count, Draining uint32
	// Affinity is the timeout of an entry of affinity, seconds; 0 means no affinity.
	Affinity uint32
	Flags    uint32
	Pad      uint32 // zero
}

// End returns the end of the run: the number of the slot after its last one.
func (f Frontend) End() uint64 { return uint64(f.First) + uint64(f.Count) + uint64(f.Draining) }

// Extent returns the run as an extent, and its end. An extent of more than 1<<32 slots, which no
// table has, gets the count 0.
func (f Frontend) Extent() (at buddy.Extent, end uint64) {
	if uint64(f.Count)+uint64(f.Draining) > math.MaxUint32 {
		return buddy.Extent{}, 0
	}
	return buddy.Extent{First: f.First, Count: f.Count + f.Draining}, f.End()
}

// ChunkSlots is the number of slots of a chunk, as SLOT_CHUNK_BITS in bpf/lib/service/backend.h. If
// a table has fewer slots, its only chunk has as many as the table.
const ChunkSlots = 1 << 16

// FlagLocal marks a backend on this node.
const FlagLocal uint16 = 1

// Backend is a slot of service_slots: an entry of one of its chunks.
type Backend struct {
	Addr  [16]byte
	Port  [2]byte
	Flags uint16
	Pad   uint32 // zero
}

// SourceRangeKey is the key of the trie service_sources. The value is 1.
type SourceRangeKey struct {
	// Bits also counts the bits of Set, and for IPv4 the 96 bits before the address.
	Bits uint32
	// Set is in network order: a trie compares bytes.
	Set  [8]byte
	Addr [16]byte
}

func MakeFrontendKey(a netip.AddrPort, p Protocol, s Scope) FrontendKey {
	return FrontendKey{Addr: a.Addr().As16(), Port: PortOf(a), Protocol: p, Scope: s}
}

// AddrPort returns the address of the key.
func (k FrontendKey) AddrPort() netip.AddrPort { return AddrPortOf(k.Addr, k.Port) }

func BackendOf(a netip.AddrPort) Backend {
	return Backend{Addr: a.Addr().As16(), Port: PortOf(a)}
}

// AddrPort returns the address of the backend.
func (s Backend) AddrPort() netip.AddrPort { return AddrPortOf(s.Addr, s.Port) }

// AddrPortOf returns the address and port of a key or a value, and PortOf the port for one.
func AddrPortOf(addr [16]byte, port [2]byte) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom16(addr).Unmap(), binary.BigEndian.Uint16(port[:]))
}

func PortOf(a netip.AddrPort) (port [2]byte) {
	binary.BigEndian.PutUint16(port[:], a.Port())
	return port
}

func CompareBackend(a, b Backend) int {
	return cmp.Or(bytes.Compare(a.Addr[:], b.Addr[:]), bytes.Compare(a.Port[:], b.Port[:]))
}

func MakeSourceRangeKey(set uint64, p netip.Prefix) SourceRangeKey {
	k := SourceRangeKey{Bits: uint32(64 + p.Bits()), Addr: p.Masked().Addr().As16()}
	if p.Addr().Is4() {
		k.Bits += 96
	}
	binary.BigEndian.PutUint64(k.Set[:], set)
	return k
}

func (k SourceRangeKey) Number() uint64 { return binary.BigEndian.Uint64(k.Set[:]) }

// Limits are the sizes of the maps, in entries.
type Limits struct {
	Frontends    uint32
	BackendSlots uint32 // a power of two; a group takes its number of backends, rounded up to one
	SourceRanges uint32
}

// DefaultLimits has room for 64k services and a million backends, and for their new versions during
// changes.
var DefaultLimits = Limits{
	Frontends: 1 << 18, BackendSlots: 1 << 22, SourceRanges: 1 << 16,
}

// APILimits has room for entry 0 and default/kubernetes, and nothing else.
var APILimits = Limits{Frontends: 64, BackendSlots: 2 * APISlots, SourceRanges: 64}

// Room of entry 0, which no service takes.
const (
	// MaxAPIServers bounds the backends of one family of entry 0.
	MaxAPIServers = 1 << APIOrder
	// MaxAPIFrontends bounds its frontends. At most MaxHostFrontends of them are for Host.
	MaxAPIFrontends  = 16
	MaxHostFrontends = 8

	APIOrder  = 5
	APIBlocks = 4 // per family: two may be read after an incomplete change, one is written
	APISlots  = 2 * APIBlocks << APIOrder
)
