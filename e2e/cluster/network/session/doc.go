// Package session runs the cases of a cluster, one after the other, and has what they share: two
// pods that stay, flows that go on, the daemons, and the judgement of what was seen on the wire.
//
// It promises that each case has a time limit, and that its remains are described before they are
// removed. Start reading at Run, then Session.
package session
