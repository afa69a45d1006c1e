// Package feed passes the objects of one kind on, as a reflector reads them: each change, and after
// a list only what differs. It stores the values that it passed on, but no objects.
//
//	reflector ─► Feed ─► Parse ─► bound ─► Put, Drop
//	                               ├─ ShrinkLargest: the largest of a namespace lose their content
//	                               │    LimitCount: one value replaces a namespace with too many
//	                               └─ LeaveOutLast: the last of a namespace by name are left out
//
// What a bound took away is passed on again when it fits again: one object at a time, or by a new
// list.
//
// Start reading at Feed, then the interface bound; run.go waits for the first lists.
package feed
