// Package keys has the cases of a node's key and of its WireGuard sessions: a key that is replaced,
// a clock that is set back, and a rollout of veil-wg.
//
// Start reading at Replaced.
package keys
