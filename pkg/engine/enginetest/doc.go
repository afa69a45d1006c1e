// Package enginetest runs tunnel devices in one process: package engine, and wireguard-go as the
// reference, over UDP sockets of the loopback interface and a TUN in memory.
//
// A TunDevice has the same methods for every kind of device, so a test is written once for both
// roles.
//
// Start reading at NewEngine.
package enginetest
