// Package nft keeps nftables tables of the family inet in their wanted state.
//
// A Table describes the content of a table: the content that a caller wants, or the content that
// Read found in the kernel. Diff compares two tables, and Write applies the difference in one
// transaction:
//
//	want ──────────┐
//	               ├─► Diff ─► Difference ─► Write
//	kernel ─► Read ┘               └─► String: what differs
//
// It promises:
//   - The kernel applies a Write as a whole or not at all, regardless of its size.
//   - Counters keep their counts.
//   - If only elements differ, the rules are not changed.
//   - Elements of a Shared set are never read, and stay when rules change. Only if the type of a
//     set is wrong, or if the table has a foreign object, the table is replaced and such a set is
//     empty.
//   - Equal tables have no Difference, so a restarted program adopts the tables that it finds.
//
// Rules are compared by their expressions, which is the form in which the kernel stores all rules.
// Comments do not matter. The nftables library leaves out expressions that it does not know, so a
// difference in such an expression is not noticed.
//
// For transactions with 100,000 rules, use package nfnl.
//
// Each function opens a connection for one call, in the network namespace of the calling thread. A
// Conn is for several calls. Start with Table.
package nft
