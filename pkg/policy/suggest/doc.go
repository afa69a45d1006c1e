// Package suggest writes NetworkPolicies that allow the connections which nodes know, for a person
// to read and change. It is pure.
//
//	node A: known connections ─► Seen ─┐
//	node B: known connections ─► Seen ─┴─► Write ─► YAML with comments
//
// It promises:
//   - What it writes allows no more than what was seen: by ports, and by labels, addresses of the
//     outside or of nodes. Where labels select other pods too, a comment names one.
//   - What cannot be written is a comment: pods without labels, unknown peers, and what is beyond a
//     bound.
//   - All that a node sent is quoted: it cannot end a comment or a line.
//
// Start reading at Seen, then Write.
package suggest
