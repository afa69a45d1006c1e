// Package supervisor keeps a process alive for each tunnel device that a directory requests.
//
//	veild ── <dir>/veil0.json ──→ Supervisor ── starts, restarts ──→ device process
//
// A device process holds a lock (<dir>/<device>.lock, flock) as long as it lives. A supervisor that
// finds the lock held adopts that process: it waits for the process to end, and then starts its
// own. So packets flow on if the supervisor dies, and a device never has two processes. If the
// process can hand its sessions over, the supervisor starts a successor instead of waiting.
//
// If several supervisors run for one directory, the newest serves it. An older one waits without
// any lock, and serves again when the newest ends (instance.go).
//
// It refuses a directory that is not on tmpfs unless configured to trust the disk, a malformed
// request, and a name that does not belong to a tunnel.
//
// Start reading at Supervisor.Run.
package supervisor
