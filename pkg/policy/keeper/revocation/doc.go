// Package revocation deletes the known connections of a node's pods that the policies in force do
// not allow. The kernel judges the next packet of such a connection as a first packet.
//
// It has its own goroutine beside the keeper's, since a node may know 100,000 connections. It
// pauses between two readings of them. A reading returns a bounded number of denied connections.
// They are deleted in pieces, and a plan can come in force between two pieces. No connection is
// deleted while a plan comes in force. The table of policies drops answers to deleted flows that
// are on their way, up to a bound per pod. If the table refuses this, such flows stay until the
// next reading; TCP connections end nevertheless.
//
// Start reading at Revoker.Begin, then Revoker.Once.
package revocation
