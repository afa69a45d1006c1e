// Package openloop loads a server of one-byte requests and measures how long answers took.
//
// # What it promises
//
// In an open loop, operations are due at fixed times, regardless of the server, and the time of
// each counts from then. If a server stalls for a second, all operations that are due in that
// second are slow, including those for which no slot was free. A tool that waits for an answer
// before its next request would see one slow operation ("coordinated omission"). Percentiles are
// exact, because all times are kept and sorted. An operation that has not ended at the end of the
// run counts with the time that it has waited.
//
// In a closed loop (Rate 0), each slot begins its next operation when the last one has ended. That
// measures the highest rate of that number of clients.
//
// One thread serves all slots by epoll(7), so that the tool uses little of the CPUs that it shares
// with the measured server. It sends traffic only to the addresses in the Load.
//
// Start reading at Load.Run. Echo is the server.
package openloop
