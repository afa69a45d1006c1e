// Package loop is the goroutine of a keeper: it makes a turn after each poke, retries a turn that
// failed, and makes a turn at intervals without a reason.
//
//	Poke ───► gather ─┐
//	failure ─► retry ─┼─► turn
//	interval ─────────┘
//	Do, After ────────────► job between two turns
//
// Promises:
//   - Turns and jobs run one after another on the goroutine of Run. What only they use needs no
//     lock.
//   - A poke is followed by a turn that begins after it. Pokes before a turn count as one.
//   - The pause before a retry doubles from RetryMin to RetryMax. A turn that succeeds, or that a
//     poke causes, begins again with RetryMin.
//
// The rule for what a keeper knows is visible in its types: what it has received, with a mutex;
// what one goroutine owns, without; and what it publishes, behind an atomic pointer. The reasons
// stand in docs/design/0031-features-of-the-agent.md.
//
// Start reading at Loop.Run.
package loop
