// Package logs writes the log of a device: without keys, a bounded number of lines, and without
// waiting while no process reads it.
//
// Start reading at NewLogger and Writer.
package logs
