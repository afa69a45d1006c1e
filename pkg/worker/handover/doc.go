// Package handover is the protocol by which one process hands a device over to another, over a
// socket beside the device's state. pkg/worker has both sides of it.
//
// Start reading at the drawing in handover.go.
package handover
