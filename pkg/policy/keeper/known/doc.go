// Package known answers questions about policies from the connections that a node knows: what would
// change if other policies came in force (Try), which connections a namespace has (Seen), and which
// rules allow how many connections (Allowed).
//
//	keeper ─► View: copy of the planner, names ──┐
//	conntrack, fast path ─► known connections ───┴─► Judge ─► Tried, suggest.Seen, counts of rules
//	    where no policies are in force: objects that veilctl hands over ─► Places ─► View
//
// It promises:
//   - A question changes nothing: it plans with a copy, and only reads the kernel.
//   - One question is answered at a time. Another one waits, and gets an error after a while.
//   - Memory is bounded, however many connections the node knows.
//
// Start reading at Judge.Try, then look.each.
package known
