// Package engine is a userspace WireGuard device: a TUN, UDP sockets and the protocol between them.
//
//	            TUN queue i (superpackets)                        UDP sockets (segmentation offloads)
//	TX thread i: read ─ allowed IP ─ split ─ seal batch ─ sendmmsg ─→
//	RX thread i: ←─ recvmmsg ─ open batch ─ replay, source ─ coalesce ─ writev
//	                      │ handshake messages → ring of 1,024, eventfd
//	control goroutine: handshakes, cookies, timers, configuration, staged packets
//
// A shard is a queue of the TUN with one sending (TX) and one receiving (RX) thread. A thread
// finishes the packets that it reads and hands none to another thread. The path of packets has no
// allocation and no Go channel. The receiving threads share the sockets, and deliver batches in the
// order in which they were received (turns). Control does all other work.
//
// Locks. Control and configuration hold Device.mu. To change data that the threads read, they also
// hold the write lock of Device.state. A thread holds the read lock for a batch. So once a session
// is removed under the write lock, no thread can use its keys, and they can be zeroed. Counters and
// times of peers are atomic.
//
// Greetings. A device that starts, or gets a new key, has no sessions, and its peers cannot notice
// that. So it greets them: it sends each peer with an endpoint an initiation at once (timers.go).
//
// It promises:
//   - No counter of a session is used twice, or beyond the limit of the protocol.
//   - Nothing is sealed or opened with a session older than 180 s; its keys are zeroed after 540 s.
//   - Only authentic messages change an endpoint, a timer or a session.
//   - Queues are bounded: packets that wait for a session (128 per peer, 4 MiB per device),
//     handshake messages (1,024).
//   - Handshakes with peers that do not answer have a budget.
//   - Everything that is dropped or refused is counted with a reason (Device.Drops).
//   - Another process can take the device over, without a lost packet or a new handshake (Base,
//     Export; Prepare, ImportBase, Import). At any time at most one of the two processes sends.
//
// The package is larger than most, because sessions, timers, peers and batches share the locks
// above.
//
// Start reading at New, then at shard.runTX, receiver.runRX and Device.step. The states of sessions
// are in transitions.
package engine
