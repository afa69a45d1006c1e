// Package tunlink opens the TUN of a tunnel device, which outlives the processes that attach to it.
//
// It refuses a link of that name that is not a TUN, and removes nothing else.
//
// Start reading at OpenQueues.
package tunlink
