// Package loop is the goroutine of a keeper: it makes a turn after each poke, retries a turn that
// failed, and makes a turn at intervals without a reason.
//
//	Poke ───► gather ─┐
//	failure ─► retry ─┼─► turn
//	interval ─────────┘
//	Do, After ────────────► job between two turns
//
// Promises:
//   - Turns and jobs run one after another on the goroutine of Run. Data that only they use needs
//     no lock.
//   - After a poke, a turn begins: at once after calm, otherwise when Gather has passed since the
//     last turn. Several pokes before a turn cause only one turn.
//   - The pause before a retry doubles from RetryMin to RetryMax. It starts again with RetryMin
//     after a turn that succeeds, and for a turn that a poke causes.
//
// A keeper has three types for its data. The first holds what it received from other goroutines,
// with a mutex. The second holds data of the goroutine of Run, without a mutex. The third is
// published behind an atomic pointer. docs/design/0031-features-of-the-agent.md has the reasons.
//
// Start reading at Loop.Run.
package loop
