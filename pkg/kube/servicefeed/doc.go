// Package servicefeed passes Services and EndpointSlices of the API server to a sink: the planner
// of package service.
//
//	Services       ─► parse ─► share of the namespace ─► sink
//	EndpointSlices ─►   │           └─► last by name: Left
//	                    └─► malformed: a problem
//
// Promises:
//   - A malformed part costs that part, and a malformed object itself. It is a problem of the
//     server.
//   - What one namespace asks for beyond its share of the table is not passed on, and is counted.
//   - A source range that cannot be read admits no client.
//
// Start reading at Run, then parse.go.
package servicefeed
