package export

import (
	"net/netip"
	"slices"
)

// Name is the namespace and name of a Service, and of the ServiceExport that exports it.
type Name struct{ Namespace, Name string }

// String returns the form NAMESPACE/NAME.
func (n Name) String() string { return n.Namespace + "/" + n.Name }

// Export is a ServiceExport.
type Export struct {
	Name Name
	// Named reports whether the export names its sites. If it does not, it is for every site.
	Named bool
	// Sites are the names of the sites, sorted.
	Sites []string
}

// Equal reports whether e and o are the same.
func (e Export) Equal(o Export) bool {
	return e.Name == o.Name && e.Named == o.Named && slices.Equal(e.Sites, o.Sites)
}

// Port is a port of endpoints. Protocol is its number in an IP header.
type Port struct {
	Protocol uint8
	Port     uint16
}

// Slice is the part of an EndpointSlice that concerns this node.
type Slice struct {
	Service Name
	// Name is the name of the EndpointSlice.
	Name string
	// Addrs are the addresses of the endpoints on this node.
	Addrs []netip.Addr
	Ports []Port
}

// Equal reports whether s and o are the same, with their lists in the same order.
func (s Slice) Equal(o Slice) bool {
	return s.Service == o.Service && s.Name == o.Name && slices.Equal(s.Addrs, o.Addrs) &&
		slices.Equal(s.Ports, o.Ports)
}

// Sink receives ServiceExports and EndpointSlices from a source. Calls for objects of one kind do
// not overlap.
type Sink interface {
	PutExport(e Export)
	DeleteExport(n Name)
	PutSlice(s Slice)
	DeleteSlice(service Name, name string)
	// Listed is called once, when all objects that exist have been put.
	Listed()
}

// Pod is a pod of this node.
type Pod struct {
	Namespace string
	Addrs     []netip.Addr
}
