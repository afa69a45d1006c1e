// Package droplog writes which connections policies deny to the node's log, and counts samples of
// denied packets by rule.
//
// It promises:
//   - A drop with the same ends and reason is logged once per dropRepeat.
//   - A pod that is often denied neither fills the log nor hides other pods from it. Each sender
//     has a token bucket, and the node has one for all senders.
//   - Memory is bounded, regardless of what pods send: senders, drops of a sender, and rules of a
//     namespace.
//
// It does not receive packets (nftables.DropLog does), and does not find the policies that deny
// them (package keeper does).
//
// Start reading at Log.Add, then dropLimit.accept.
package droplog
