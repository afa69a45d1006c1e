// Package nfnl speaks nfnetlink (linux/netfilter/nfnetlink.h) where there are many messages:
// transactions of nftables with 100,000 rules, dumps of them, and deletions of tracked connections.
//
//	Messages ─► Conn.Commit   one transaction of nftables, all or nothing
//	         ─► Conn.Send     messages that are independent of one another
//	Request  ─► Conn.Dump     one call for each object
//
// It requests one acknowledgement for a transaction, instead of an acknowledgement for each message
// and an echo of each rule. The kernel handles messages before the send returns, so all answers are
// then ready.
//
// It promises:
//   - Commit returns an error if the kernel refused any message. Send does so too, except for the
//     error that its caller ignores.
//   - Dump starts again, or returns an error, if objects changed during the dump.
//
// The bytes that a callback receives are valid only until it returns.
//
// Callers that make several nftables transactions should keep a Conn. When any nfnetlink socket is
// closed, the kernel holds the lock of nftables until the objects that the last transaction removed
// are freed. That takes a grace period of RCU: 20 to 40 ms (net/netfilter/nf_tables_api.c,
// nft_rcv_nl_event).
//
// A Conn belongs to the network namespace of the thread that opened it.
package nfnl
