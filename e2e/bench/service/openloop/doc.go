// Package openloop loads a server of one-byte requests and measures how long answers took.
//
// # What it promises
//
// In an open loop operations begin at moments that were fixed before, regardless of the server, and
// the time of each counts from its moment. A server that stalls for a second slows all operations
// of that second, also those for which no slot was free. A tool that waits for an answer before its
// next request would see one slow operation ("coordinated omission"). Percentiles are exact: every
// time is kept and sorted. An operation that has not ended when the run ends is counted, with the
// time it has waited so far.
//
// In a closed loop, Rate 0, each slot begins the next operation when its last one ended. That
// measures the highest rate of that number of clients.
//
// One thread serves all slots by epoll(7), so that the tool uses little of the CPUs that it shares
// with the measured server. It sends traffic only to the addresses in the Load.
//
// Start reading at Load.Run. Echo is the other end.
package openloop
