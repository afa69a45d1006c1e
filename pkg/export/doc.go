// Package export decides which endpoints of this node other clusters may open connections to.
//
//	ServiceExports ─┐
//	EndpointSlices ─┼─► Exports ─► Decide ─► openings ─► guard
//	pods of a node ─┘
//
// A ServiceExport opens the endpoints of the Service that has its namespace and name. An endpoint
// is opened only if it is a pod of this node in the namespace of the export, as the record of the
// pod's attachment states. So an EndpointSlice that a user wrote cannot open a pod of
// another namespace, a process of the node, or an address elsewhere.
//
// The package is pure. Openings have a bound per namespace and per node. What is beyond it stays
// closed and is counted.
//
// Start with Exports.Decide in table.go.
package export
