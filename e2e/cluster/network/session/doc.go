// Package session runs the cases of a cluster, one after the other, and has the state that they
// share: two pods, flows that continue during a change, the daemons, and the verdict on the traffic
// on the wire.
//
// It promises that each case has a time limit, and that the state that a failed case left is
// described before it is removed. Start reading at Run, then Session.
package session
