// Package addressplan is the plan of a lab's addresses: the ranges of pods and services, the
// networks between hosts, and the last byte of each host's address. All addresses are from
// 198.18.0.0/15 and fd42::/16. All labs use the same plan, because they cannot see each other.
//
// Start reading at Family.
package addressplan
