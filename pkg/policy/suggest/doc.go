// Package suggest writes NetworkPolicies that allow the connections which nodes know, for a person
// to read and change. It is pure.
//
//	node A: known connections ─► Seen ─┐
//	node B: known connections ─► Seen ─┴─► Write ─► YAML with comments
//
// It promises:
//   - The policies allow only connections that were seen: their ports, and their peers by labels
//     or, for nodes and the outside, by addresses. Where labels select other pods too, a comment
//     names one of them.
//   - A comment names what no policy can express: pods without labels, unknown peers, and
//     connections beyond a bound.
//   - Of what a node sent, only names, labels and addresses that can exist in a cluster are
//     written. All text is quoted in ASCII, so it cannot end a comment or a line.
//
// Start reading at Seen, then Row.valid, then Write.
package suggest
