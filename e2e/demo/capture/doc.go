// Package capture keeps frames of a link for a report, and describes each in a line.
//
// Start reading at Start.
package capture
