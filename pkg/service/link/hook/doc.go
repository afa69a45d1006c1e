// Package hook attaches the programs of services to the hooks of a link, at tcx or at the qdisc
// clsact. Plan is pure: it returns the programs that a link must have.
//
// It promises that only programs of Kubeveil are replaced or detached: programs with one of our
// names and one of our maps. HasOthers, HasBehind and Limits report what other software has at a
// link, because that software must see the packets. If a question cannot be answered, they report
// that there is such software.
//
// Start with Attacher in hook.go.
package hook
