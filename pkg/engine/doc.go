// Package engine is a userspace WireGuard device: a TUN, UDP sockets and the protocol between them.
//
//	            TUN queue i (superpackets)                        UDP sockets (segmentation offloads)
//	TX thread i: read ─ allowed IP ─ split ─ seal batch ─ sendmmsg ─→
//	RX thread i: ←─ recvmmsg ─ open batch ─ replay, source ─ coalesce ─ writev
//	                      │ handshake messages → ring of 1,024, eventfd
//	control goroutine: handshakes, cookies, timers, configuration, staged packets
//
// A shard is two threads. Each finishes the packets that it reads, without handing one to another
// thread, and the path has no allocation and no Go channel. Receiving threads share the sockets,
// and deliver in the order in which they received (turns). Control does all other work.
//
// Locks. Control and configuration hold Device.mu. Data that the threads read is also changed under
// the write lock of Device.state; a thread holds the read lock for a batch. So a session's keys are
// zeroed when no thread can use them any more. Peers' counters and times are atomic.
//
// It promises:
//   - No counter of a session is used twice, and none beyond the limit of the protocol.
//   - Nothing is sealed or opened with a session older than 180 s; its keys are zeroed after 540 s.
//   - No byte that is not authentic changes an endpoint, a timer or a session.
//   - Queues are bounded: packets that wait for a session (128 per peer, 4 MiB per device),
//     handshake messages (1,024).
//   - Handshakes with peers that do not answer have a budget.
//   - Everything that is dropped or refused is counted with a reason (Device.Drops).
//   - Another process can go on in place of this one, without a lost packet or a new handshake
//     (Base, Export; Prepare, ImportBase, Import). At any time at most one of them sends.
//
// It is larger than most packages: sessions, timers, peers and batches share the locks above, and
// another package could not hold them.
//
// Start reading at New, then at shard.runTX, receiver.runRX and Device.step; the life of a session
// is in transitions.
package engine
