// Package service has the types of services and of their table: Services and EndpointSlices as
// plain values, keys and values of the BPF maps, and Changes that a plan makes to the maps.
//
// Lists of backends and endpoints are compact, because a node may have a million. They do not
// change once they are in use.
//
// Start with Service in service.go, then Frontend in layout.go. Package planner makes the Changes.
package service
