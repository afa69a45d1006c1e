// Package loop is the loop that the suite compares veild with: a small message and an update of a
// map for each endpoint, as Arion's agent does.
//
// Start reading at Measure.
package loop
