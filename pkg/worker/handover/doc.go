// Package handover is the protocol by which one process hands a device over to another, over a
// socket beside the device's state. Package worker has the code of both processes.
//
// Start reading at the drawing in handover.go.
package handover
