// Package tables is the nftables tables beside routing: pods' packets that leave the cluster are
// masqueraded, and outer packets stay whole.
//
// Start reading at NAT and Outer.
package tables
