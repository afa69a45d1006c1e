// Package quota decides which objects of a namespace are kept when they are too many. It counts
// elements, as package wire does, and holds no objects.
//
//	Allowance: the largest are dropped, and known   ─► policies and pods: shrunk
//	Share:     the last by name are left out, and forgotten ─► services: not passed on
//
// The decision depends only on the objects, not on the order of their arrival, so all nodes decide
// alike. For a Share that holds only after a list. A namespace does not affect other namespaces.
//
// An Allowance and a Share are not safe for concurrent use. Start reading at Allowance.Put.
package quota
