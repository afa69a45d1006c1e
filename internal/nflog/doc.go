// Package nflog receives packets that rules of nftables log to a group
// (linux/netfilter/nfnetlink_log.h), and reads their headers.
//
// It promises:
//   - Only the headers of a packet leave the package. The rest of the bytes is dropped here.
//   - Bytes that a pod chose never lead to more than a Packet without addresses.
//   - A slow receiver loses packets. It delays none.
//
// A group has one listener in a network namespace. Without a listener, rules that log cost what
// their conditions cost.
//
// Start with Open, then ReadHeaders.
package nflog
