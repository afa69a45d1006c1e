// Package keeper keeps the openings of a node up to date for the agent, which passes them to the
// guard.
//
//	source ─► Feature: Exports, pods ─► Opened ─► agent's loop ─► guard
//	                        known connections ◄─ ender ◄─ InForce ◄─┘
//
// It promises:
//   - Nothing is open until the ServiceExports and the EndpointSlices have been listed. So after a
//     restart of veild new connections from sites wait for the API server, and known ones continue.
//   - While the API server is away, what is open stays open. A pod that leaves the node is closed at
//     once, because its record is removed.
//   - When the guard has closed an endpoint, the known connections of sites to it are deleted, unless
//     it is open again within two seconds, as when its address moves to another EndpointSlice.
//
// Start with Feature in feature.go.
package keeper
