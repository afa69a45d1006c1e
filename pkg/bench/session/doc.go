// Package remote lets a suite give commands to a program in a pod over one exec that stays open.
//
//	suite ─ Session ── exec: stdin, stdout ── Serve ─ program in the pod
//	         {"id":1,"verb":"rr","args":{…}}  →
//	                                          ←  {"id":1,"value":{…}}
//
// An exec for each measurement would cost an emulated machine a second of the processor that is
// being measured; a line in an open one costs a millisecond.
//
// It promises that an answer is that of its own call, that calls may overlap, that a call whose
// context ends is ended in the pod too, and that the end of the exec ends everything that Serve had
// started. It keeps no state beyond that: a Session that broke stays broken.
//
// Start reading at Session and Serve; verb.go is what the performance suite says with it.
package session
