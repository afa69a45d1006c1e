// Package worker is userspace WireGuard for nodes whose kernel has none: a
// supervisor and, for each device, a process around package engine or, by choice,
// golang.zx2c4.com/wireguard.
//
//	veild ── <dir>/veil0.json ──→ supervisor ── starts, restarts ──→ device process ── TUN veil0
//	  └────── /var/run/wireguard/veil0.sock (standard protocol) ─────────┘   └── <dir>/veil0.state
//
// It promises:
//   - The TUN is persistent. The device, its addresses and its routes survive the death of any
//     process. Only the removal of the request file removes them.
//   - Accepted settings are kept: before a configuration request is answered, the new state is in a
//     file on tmpfs (mode 0600). A new process starts with this state, and initiates a handshake
//     with every peer at once. Its timestamps are later than the last one of the old process
//     (<device>.stamp, at most a second old). So traffic resumes in both directions without veild,
//     also if the peer only receives.
//   - Outer packets carry DF and are never fragmented: each UDP socket has
//     IP(V6)_MTU_DISCOVER = PROBE before it can send.
//   - A UDP datagram over IPv6 never has the checksum 0, because its receiver would drop it.
//   - Keys are not revealed: text that looks like a key is removed from log lines, and the process
//     is not dumpable and leaves no core file.
//   - It works with a veild of another release, and with a TUN that another release made: unknown
//     fields of a request are ignored, and a TUN keeps its flags.
//
// It refuses a directory that is not on tmpfs unless configured to trust the disk. It also refuses
// a malformed request, a name that does not belong to a tunnel, a link of that name that is not a
// TUN, and a socket that another program serves.
//
// A device process holds a lock (<dir>/<device>.lock, flock) as long as it lives. A supervisor that
// finds the lock held adopts that process: it waits for the process to end, and then starts its
// own. So packets flow on if the supervisor dies, and a device never has two processes.
//
// With package engine the supervisor does not wait. It starts a process that takes the device, with
// its sessions, over from the adopted process. wireguard-go cannot hand sessions over.
//
// Subpackages are the supervisor, the protocol of the handover, the configuration socket with the
// kept state, logs, and the TUN.
//
// Start reading at RunDevice, then at supervisor.Supervisor.Run.
package worker
