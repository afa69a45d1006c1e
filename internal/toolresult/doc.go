// Package toolresult has the results that verbs of veil-tools print, and that veilctl and tests
// read. Times are in milliseconds.
package toolresult
