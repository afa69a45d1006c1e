// Package engine measures the engines of veil-wg beside each other, beside the clear network, and
// beside a pair of TLS proxies.
//
//	pod a ── node a (veil0) ══ UDP ══ node b (veil0) ── pod b
//
// Each side has four network namespaces of its own; its two device processes are this program. All
// sides exist at once and are measured one after the other in each round, in an order that is
// drawn. A ratio is of two samples of one round.
//
// CPU is the time of the two device processes, or proxies (/proc/PID/stat), in core-seconds a 10^9
// bytes.
//
// It is larger than most packages: all lanes share one world of namespaces and device processes,
// and the load is written here, so that it costs less than what it measures.
//
// Start reading at Run.
package engine
