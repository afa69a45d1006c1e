// Package supervisor keeps a process alive for each tunnel device that a directory requests.
//
//	veild ── <dir>/veil0.json ──→ Supervisor ── starts, restarts ──→ device process
//
// A device process holds a lock (<dir>/<device>.lock, flock) as long as it lives. A supervisor that
// finds it held adopts that process: it waits for its end and then starts its own. So the death of
// the supervisor stops no packet and never leads to two processes for a device. Where the process
// can hand its sessions over, the supervisor starts a successor instead of waiting.
//
// Of several supervisors of a directory the newest serves; an older one stays, holds nothing, and
// serves again when the newest ends (instance.go).
//
// It refuses a directory that is not on tmpfs unless configured to trust the disk, a malformed
// request, and a name that does not belong to a tunnel.
//
// Start reading at Supervisor.Run.
package supervisor
