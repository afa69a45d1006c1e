// Package addressplan is the plan of a lab's addresses: the ranges of pods and services, the
// networks between hosts, and the last byte of each host. All are from 198.18.0.0/15 and fd42::/16.
// Every lab has the same plan: labs cannot see each other.
//
// Start reading at Family.
package addressplan
