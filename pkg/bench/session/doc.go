// Package session lets a suite give commands to a program in a pod over one exec that stays open.
//
//	suite ─ Session ── exec: stdin, stdout ── Serve ─ program in the pod
//	         {"id":1,"verb":"rr","args":{…}}  →
//	                                          ←  {"id":1,"value":{…}}
//
// An exec for each measurement would cost an emulated machine a second of CPU time, and the suite
// measures that CPU. A line over an open exec costs a millisecond.
//
// It promises that each call gets its own answer, and that calls may overlap. If the context of a
// call ends, the call ends in the pod too. The end of the exec ends all calls that Serve runs. A
// broken Session stays broken: it does not reconnect.
//
// Start reading at Session and Serve; verb.go has the commands of the performance suite.
package session
