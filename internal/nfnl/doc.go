// Package nfnl speaks nfnetlink (linux/netfilter/nfnetlink.h) where there are many messages:
// transactions of nftables with 100,000 rules, dumps of them, and deletions of tracked connections.
//
//	Messages ─► Conn.Commit   one transaction of nftables, all or nothing
//	         ─► Conn.Send     messages that are independent of one another
//	Request  ─► Conn.Dump     one call for each object
//
// It requests one acknowledgement of a transaction, instead of one for each message and an echo of
// each rule. The kernel handles what is sent before the send returns: all answers are there then.
//
// It promises:
//   - Commit and Send return an error if the kernel refused any message.
//   - Dump returns an error, or starts again, if the kernel says that objects changed meanwhile.
//   - Bytes that a callback gets are valid until it returns.
//
// Keep a Conn where transactions of nftables follow one another. When any socket of nfnetlink is
// closed, the kernel waits under nftables' lock until what the last transaction removed is freed,
// which takes a grace period of RCU: 20 to 40 ms (net/netfilter/nf_tables_api.c, nft_rcv_nl_event).
//
// A Conn belongs to the network namespace of the thread that opened it.
package nfnl
