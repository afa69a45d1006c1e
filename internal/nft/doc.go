// Package nft keeps nftables tables of the family inet in their wanted state.
//
// A Table is data: what a caller wants, or what Read found in the kernel. Diff compares the two by
// content, and Write makes the difference in one transaction:
//
//	want ──────────┐
//	               ├─► Diff ─► Difference ─► Write
//	kernel ─► Read ┘               └─► String: what differs
//
// It promises:
//   - The kernel applies a Write whole or not at all, regardless of its size.
//   - Counters keep their counts.
//   - A difference in elements does not change the rules.
//   - Elements of a Shared set are never read, and survive a change of rules. Only if a set itself
//     is wrong, or something foreign is in the table, the table is replaced and the set empty.
//   - Equal tables make no Difference, so a restarted program adopts what it finds.
//
// Rules are compared by their expressions, the form in which the kernel holds the rules of any
// program. Comments do not matter. The nftables library drops expressions that it does not know, so
// a rule of another program may differ unseen in one of those.
//
// Transactions with 100,000 rules are the business of package nfnl.
//
// Functions open a connection for one call, in the network namespace of the calling thread. A Conn
// serves for several calls in a row. Start with Table.
package nft
