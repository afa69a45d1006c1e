// Package engine measures the engines of veil-wg beside each other, beside the clear network, and
// beside a pair of TLS proxies.
//
//	pod a ── node a (veil0) ══ UDP ══ node b (veil0) ── pod b
//
// Each side has its own four network namespaces. Its two device processes are child processes of
// this program. All sides exist at the same time. Each round measures them one after the other, in
// random order. A ratio is formed from two samples of one round.
//
// CPU is the CPU time of the two device processes, or of the two proxies (/proc/PID/stat), in
// core-seconds per 10^9 bytes.
//
// The package is larger than most, because all parts share the type world, which has the namespaces
// and device processes. It also has its own load generators, so that the load costs less CPU than
// what it measures.
//
// Start reading at Run.
package engine
