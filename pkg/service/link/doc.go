// Package link attaches the programs of a table of services to the links of a node: packets to a
// service address are translated (NAT) where they come in, their replies where they leave.
//
// It promises that a link is never without a program between two versions, and that the flows of
// the old program go on in the new one. Guarded links get the programs behind the guard's programs;
// the egress guard tail calls the programs of its links. A packet of host routing goes from link to
// link past netfilter, unless something at the link must see it: see route.go. Which pods have this
// fast path is decided in confine.go, and nowhere else. Connections of a pod that loses it go on in
// conntrack: opened.go and handover.go.
//
// It refuses to remove programs that are not its own. A link that takes no program is not an error:
// the log reports that its packets are not translated, and it is tried again.
//
// Invariants: table loads the programs and owns their maps; only this package decides which of them
// a link gets. It attaches them without a pin, so they live as long as the link.
//
// Start with AttachLinks in link.go. The package hook below has what a link gets (Plan), and the
// ways to attach it: tcx and clsact.
package link
