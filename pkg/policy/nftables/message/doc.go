// Package message reads and writes tables of nftables in the family inet by netlink messages: chains,
// rules with their comments, sets with their elements, and counters.
//
// It promises:
//   - A Transaction reaches the kernel whole or not at all.
//   - A dump that the kernel interrupts starts over, so what is returned was in force together,
//     except between two functions of this package. Generation shows whether it was.
//   - A table that is missing has no chains, sets or counters; this is not an error.
//
// It decides nothing: package nftables chooses the names, the rules and the elements. Messages and
// attributes are defined in the kernel's include/uapi/linux/netfilter/nf_tables.h.
//
// Start reading at Transaction and ReadChains.
package message
