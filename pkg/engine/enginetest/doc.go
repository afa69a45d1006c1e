// Package enginetest runs tunnel devices in one process: package engine, and wireguard-go as the
// reference, over UDP sockets of the loopback interface and a TUN in memory.
//
// A Node has the same methods for every kind of device, so that one test can run with each pair of
// kinds.
//
// Start reading at NewEngine.
package enginetest
