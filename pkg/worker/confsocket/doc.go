// Package confsocket answers the configuration socket of a userspace device, and keeps what was
// set. The state is on tmpfs before the answer leaves, a changed peer appended and not all of them
// written. Beside it is the last timestamp of handshakes.
//
// It promises that no client that is slow, silent or hostile holds up another or a handover.
//
// Start reading at Server.
package confsocket
