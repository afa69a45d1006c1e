// Package worker is userspace WireGuard for nodes whose kernel has none: a
// supervisor and, for each device, a process around package engine or, by choice,
// golang.zx2c4.com/wireguard.
//
//	veild ── <dir>/veil0.json ──→ supervisor ── starts, restarts ──→ device process ── TUN veil0
//	  └────── /var/run/wireguard/veil0.sock (standard protocol) ─────────┘   └── <dir>/veil0.state
//
// It promises:
//   - The TUN is persistent: no death of a process takes the device, its addresses
//     or its routes. Only the removal of the request does.
//   - Accepted settings are kept. The device's state is on tmpfs
//     (0600) before the answer leaves (a changed peer is appended, not all of
//     them written). A new process begins with it, behind the last timestamp
//     of handshakes (<device>.stamp, a second old at most), and
//     shakes hands with every peer at once. So traffic comes back both ways
//     without veild and also when the other side only receives.
//   - Outer packets carry DF and are never fragmented: each UDP socket has
//     IP(V6)_MTU_DISCOVER = PROBE before it can send.
//   - A datagram over IPv6 never gets the checksum 0, with which it would be dropped where it
//     arrives.
//   - Keys are not printed: text that looks like a key is cut from log lines, the
//     process is not dumpable and leaves no core.
//   - It works beside a veild of another release and takes over the TUN of one:
//     unknown fields of a request are ignored, and a TUN keeps its flags.
//
// It refuses a directory that is not on tmpfs unless configured to trust the disk. It also refuses
// a malformed request, a name that does not belong to a tunnel, a link of that name that is not a
// TUN, and a socket that another program serves.
//
// A device process holds a lock (<dir>/<device>.lock, flock) as long as it
// lives. A supervisor that finds it held adopts that process: it waits for its
// end and then starts its own. So the death of the supervisor stops no packet
// and never leads to two processes for a device.
//
// With package engine the supervisor does not wait: its own process requests the device from the
// adopted one, and goes on with its sessions. With wireguard-go no session is handed over.
//
// Packages of its own are the supervisor, the protocol of the handover, the configuration socket
// with the kept state, and the TUN.
//
// Start reading at RunDevice, then at supervisor.Supervisor.Run.
package worker
