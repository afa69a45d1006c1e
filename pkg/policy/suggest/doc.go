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
//   - All text that a node sent is quoted, so it cannot end a comment or a line.
//
// Start reading at Seen, then Write.
package suggest
