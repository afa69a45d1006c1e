// Package servicefeed passes Services and EndpointSlices of the API server to a sink: the planner
// of package service.
//
//	Services       ─► parse ─► share of the namespace ─► sink
//	EndpointSlices ─►   │           └─► last by name: Left
//	                    └─► malformed: a problem
//
// Promises:
//   - Only the malformed part of an object, or the malformed object, is left out. That is reported
//     as a problem of the server.
//   - If an object cannot be read, what was read of it before stays.
//   - Objects that exceed the share of their namespace in the table are not passed on, but counted.
//   - A source range that cannot be parsed admits no client.
//
// Start reading at Run, then parse.go.
package servicefeed
