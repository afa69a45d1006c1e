package service

import (
	"encoding/binary"
	"iter"
	"net/netip"
	"slices"
	"unique"
)

// Endpoints is the list of the endpoints of a slice. The zero value is an empty list. Only Add and
// Append change a list, and copies share it. So they must not be called once the list is in use.
//
// An endpoint takes 12 bytes if all have IPv4 addresses and are ready, and 24 if all have IPv6
// addresses. Text of an address and of a node's name is not kept.
type Endpoints struct{ list *endpointList }

// endpointList has a field for each part of an endpoint, with an element per endpoint.
type endpointList struct {
	// One of these has the addresses: v4 or v6 if all are of that family, else mixed.
	v4    [][4]byte
	v6    [][16]byte
	mixed []netip.Addr

	nodes  []nodeName
	states []state  // nil if all endpoints are stateReady
	hints  []uint16 // nil if no endpoint has hints
}

// nodeName is the name of a node, which all of its endpoints share. Two are equal if their texts
// are.
type nodeName = unique.Handle[string]

// state is a set of the conditions of an endpoint.
type state uint8

const (
	ready state = 1 << iota
	serving
	terminating

	stateReady = ready | serving
)

func stateOf(e Endpoint) (s state) {
	if e.Ready {
		s |= ready
	}
	if e.Serving {
		s |= serving
	}
	if e.Terminating {
		s |= terminating
	}
	return s
}

// EndpointsOf returns a list of endpoints.
func EndpointsOf(list ...Endpoint) Endpoints {
	all := MakeEndpoints(len(list))
	all.Append(list...)
	return all
}

// MakeEndpoints returns an empty list with room for n endpoints.
func MakeEndpoints(n int) Endpoints {
	return Endpoints{&endpointList{nodes: make([]nodeName, 0, n)}}
}

// noNode is the name of no node.
var noNode = unique.Make("")

// Add appends an endpoint. Its node is node, or none for the zero value. Its own field Node is
// ignored.
func (l *Endpoints) Add(e Endpoint, node unique.Handle[string]) {
	if l.list == nil {
		l.list = &endpointList{}
	}
	if node == (nodeName{}) {
		node = noNode
	}
	to := l.list
	to.addAddr(e.Addr)
	if s := stateOf(e); s != stateReady || to.states != nil {
		to.states = append(unlessNil(to.states, to, stateReady), s)
	}
	if e.Hints != 0 || to.hints != nil {
		to.hints = append(unlessNil(to.hints, to, 0), e.Hints)
	}
	to.nodes = append(to.nodes, node)
}

// Append appends endpoints.
func (l *Endpoints) Append(list ...Endpoint) {
	for _, e := range list {
		l.Add(e, unique.Make(e.Node))
	}
}

// unlessNil returns all, or, if it is nil, a list in which each endpoint of l has the same value.
func unlessNil[T any](all []T, l *endpointList, value T) []T {
	if all != nil {
		return all
	}
	return slices.Grow(slices.Repeat([]T{value}, len(l.nodes)), cap(l.nodes)-len(l.nodes))
}

func (l *endpointList) addAddr(a netip.Addr) {
	n := len(l.nodes)
	is6 := a.Is6() && a.Zone() == ""
	switch {
	case a.Is4() && len(l.v4) == n && l.mixed == nil:
		l.v4 = append(slices.Grow(l.v4, cap(l.nodes)-n), a.As4())
	case is6 && len(l.v6) == n && l.mixed == nil:
		l.v6 = append(slices.Grow(l.v6, cap(l.nodes)-n), a.As16())
	case l.mixed != nil:
		l.mixed = append(l.mixed, a)
	default:
		mixed := make([]netip.Addr, 0, cap(l.nodes)+1)
		for i := range n {
			mixed = append(mixed, l.addr(i))
		}
		l.v4, l.v6, l.mixed = nil, nil, append(mixed, a)
	}
}

func (l *endpointList) addr(i int) netip.Addr {
	switch {
	case l.v4 != nil:
		return netip.AddrFrom4(l.v4[i])
	case l.v6 != nil:
		return netip.AddrFrom16(l.v6[i])
	}
	return l.mixed[i]
}

// Low returns the last 16 bits of the address of the i-th endpoint.
func (l Endpoints) Low(i int) uint16 {
	switch list := l.list; {
	case list.v4 != nil:
		return binary.BigEndian.Uint16(list.v4[i][2:])
	case list.v6 != nil:
		return binary.BigEndian.Uint16(list.v6[i][14:])
	}
	a := l.list.mixed[i].As16()
	return binary.BigEndian.Uint16(a[14:])
}

// Bare returns the i-th endpoint without its node, which takes less time than At.
func (l Endpoints) Bare(i int) Endpoint {
	e, s := Endpoint{Addr: l.list.addr(i)}, stateReady
	if l.list.states != nil {
		s = l.list.states[i]
	}
	if l.list.hints != nil {
		e.Hints = l.list.hints[i]
	}
	e.Ready, e.Serving, e.Terminating = s&ready != 0, s&serving != 0, s&terminating != 0
	return e
}

// Len returns the number of endpoints.
func (l Endpoints) Len() int {
	if l.list == nil {
		return 0
	}
	return len(l.list.nodes)
}

// At returns the i-th endpoint.
func (l Endpoints) At(i int) Endpoint {
	e := l.Bare(i)
	e.Node = l.list.nodes[i].Value()
	return e
}

// NodeOf returns the name of the node of the i-th endpoint.
func (l Endpoints) NodeOf(i int) unique.Handle[string] { return l.list.nodes[i] }

// All returns an iterator over the endpoints.
func (l Endpoints) All() iter.Seq[Endpoint] {
	return func(yield func(Endpoint) bool) {
		for i := range l.Len() {
			if !yield(l.At(i)) {
				return
			}
		}
	}
}

// Addrs returns an iterator over the addresses of the endpoints.
func (l Endpoints) Addrs() iter.Seq[netip.Addr] {
	return func(yield func(netip.Addr) bool) {
		for i := range l.Len() {
			if !yield(l.list.addr(i)) {
				return
			}
		}
	}
}

// On returns an iterator over the endpoints on a node.
func (l Endpoints) On(node string) iter.Seq[Endpoint] {
	return func(yield func(Endpoint) bool) {
		name := unique.Make(node)
		for i := range l.Len() {
			if l.list.nodes[i] == name && !yield(l.At(i)) {
				return
			}
		}
	}
}

// Any reports whether is returns true for the address of an endpoint.
func (l Endpoints) Any(is func(netip.Addr) bool) bool {
	for a := range l.Addrs() {
		if is(a) {
			return true
		}
	}
	return false
}

// Map returns the list of the results of change for each endpoint. A result keeps its node.
func (l Endpoints) Map(change func(Endpoint) Endpoint) Endpoints {
	all := MakeEndpoints(l.Len())
	for i := range l.Len() {
		all.Add(change(l.At(i)), l.list.nodes[i])
	}
	return all
}

// Equal reports whether l and o have the same endpoints in the same order.
func (l Endpoints) Equal(o Endpoints) bool {
	if l.list == o.list || l.Len() == 0 && o.Len() == 0 {
		return true
	}
	if l.Len() != o.Len() || !slices.Equal(l.list.nodes, o.list.nodes) {
		return false
	}
	for i := range l.Len() {
		if l.Bare(i) != o.Bare(i) {
			return false
		}
	}
	return true
}
