// Package idle measures the CPU time of an idle process.
//
// Start reading at Measure.
package idle
