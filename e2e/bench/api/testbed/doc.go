// Package testbed makes the namespaces of the suite's latencies: three API servers in memory, a
// node with what veild has in force, and one without. It has the addresses of all.
//
// Nothing is touched but what it has made, and all of it goes with the process. Start reading at
// New.
package testbed
