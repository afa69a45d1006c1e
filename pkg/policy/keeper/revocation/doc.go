// Package revocation deletes the known connections of a node's pods that the policies in force do
// not allow. The kernel judges the next packet of such a connection as a first packet.
//
// It has its own goroutine beside the keeper's, since a node may know 100,000 connections. It
// pauses between two readings of them. No connection is deleted while a plan comes in force. The
// table of policies drops answers to deleted flows that are on their way.
//
// Start reading at Revoker.Begin, then Revoker.Once.
package revocation
