// Package baretunnel makes a second tunnel between two nodes of a lab, as an administrator would
// set it up by hand: wireguard-go's own program and wg(8). Benchmarks compare Kubeveil with it over
// the same pods, veths and routes.
//
// Start reading at Start.
package baretunnel
