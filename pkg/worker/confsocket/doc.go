// Package confsocket answers the configuration socket of a userspace device, and keeps what was
// set. Before a request is answered, the new state is in a file on tmpfs. A change of a peer is
// appended to the file, so that not all peers have to be written. Another file holds the last
// timestamp of handshakes.
//
// It promises that a slow, silent or hostile client delays neither other clients nor a handover.
//
// Start reading at Server.
package confsocket
