// Package underlay finds the link that carries the traffic between nodes, with its MTU, addresses
// and gateways.
//
// It reads the kernel and changes nothing.
//
// Start reading at Find.
package underlay
