// Package nflog receives packets that rules of nftables log to a group
// (linux/netfilter/nfnetlink_log.h), and reads their headers.
//
// It promises:
//   - Only the headers of a packet leave the package. The payload is discarded here.
//   - Malformed bytes of a pod yield at worst a Packet without addresses.
//   - A slow receiver loses samples. It never delays packets.
//
// A group has at most one listener per network namespace. Without a listener, a rule that logs
// costs only the evaluation of its conditions.
//
// Start with Open, then ReadHeaders.
package nflog
