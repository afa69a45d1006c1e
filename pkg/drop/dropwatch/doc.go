// Package dropwatch turns the guard's counters into problems for people: a counter that rose lately
// becomes a sentence with its meaning and a remedy.
//
//	guard's counters, state of peers ─► Watch ─► sentences of the node's status
//
// A counter is a problem for ten minutes after it last rose. Drops from before the start of veild
// are not one. Drops that any host can cause are one only if peers are silent.
//
// Start reading at Watch.Problems.
package dropwatch
