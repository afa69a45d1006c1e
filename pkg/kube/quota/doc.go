// Package quota decides which objects of a namespace are kept when they are too many. It counts
// elements, as package wire does, and holds no objects.
//
//	Allowance: the largest are dropped, and known   ─► policies and pods: shrunk
//	Share:     the last by name are left out, and forgotten ─► services: not passed on
//
// The decision follows from the objects alone, not from the order of their arrival; for a Share
// that holds after a list. So all nodes decide alike. No namespace costs another anything.
//
// One goroutine at a time may use an Allowance or a Share. Start reading at Allowance.Put.
package quota
